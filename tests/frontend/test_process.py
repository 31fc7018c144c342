"""The process as a whole: its start, its commands, its end, and what it costs when idle."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from frontend.http.server import LISTEN_FD
from messages.config.server import HttpConfig, RunConfig, SchedulingConfig
from messages.control.processes import (
    Beat,
    BootFailed,
    Drain,
    Drained,
    FrontendReport,
    ProcessStatus,
    ProcessTable,
    Ready,
    Stop,
)
from messages.ring.requests import ToTokenizer
from tests.fake_launcher import ROOT, FakeLauncher
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, make_config, step, table, wait_until

MAX_RSS_BYTES = 70e6
IDLE_S = 4.0
MAX_IDLE_CPU_S = 0.3
MAX_IDLE_WAKEUPS = 40


def test_before_all_are_ready_only_health_answers():
    with FrontendRun(is_ready=False) as run:
        assert run.health()["status"] == "starting"
        for path in ("/v1/models", "/version", "/ping", "/server_info", "/health/generate", "/nothing"):
            response = run.client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
            assert int(response.headers["retry-after"]) >= 1
        assert run.client.post("/generate", json={"prompt": "hi"}).status_code == 503
        loading = ProcessStatus("scheduler", "starting", 5, 1, "loading weights", 0.4, time.monotonic_ns())
        run.show(ProcessTable((*table().processes[:2], loading, table().processes[3])))
        shown = run.health()
        assert shown["status"] == "starting"
        assert shown["processes"]["scheduler"]["phase"] == "loading weights"
        assert shown["processes"]["scheduler"]["fraction"] == 0.4
        assert "loading weights 40%" in run.client.get("/v1/models").json()["error"]["message"]
        run.show(table())
        assert run.client.get("/health").status_code == 200
        run.round_trip()


def test_one_that_replaces_another_answers_also_while_the_ring_is_not_closed():
    config = make_config(run=RunConfig(restart_hold_s=0.1))
    with FrontendRun(config, is_ready=False, incarnation=2) as run:
        run.show(table(scheduler="starting"))
        assert run.health()["status"] == "unhealthy"
        assert run.client.get("/v1/models").status_code == 200
        assert run.client.post("/generate", json={"prompt": "hi"}).json()["error"]["code"] == "not_ready"


def test_a_hung_process_is_shown_and_cancel_still_works():
    with FrontendRun() as run, run.call() as call:
        message = run.take_request()
        run.show(table(age_s=45, scheduler="hung"))
        response = run.client.get("/health")
        assert response.status_code == 503
        assert response.json()["status"] == "unhealthy"
        assert response.json()["processes"]["scheduler"]["beat_age_s"] >= 45
        refused = run.client.post("/generate", json={"prompt": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert "scheduler is hung" in refused.json()["error"]["message"]
        assert run.client.get("/ping").status_code == 503
        assert run.client.post("/abort_request", json={"uid": message.uid}).status_code == 200
        run.take_abort()
        run.send(step(finals=(final(message, finish_reason="abort"),)))
        assert call.events()[-1]["finish_reason"] == "abort"
        run.show(table())
        assert run.client.get("/ping").status_code == 200


def test_health_generate_sends_one_token_round_the_ring(server: FrontendRun):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(server.address, timeout=TIMEOUT_S))
        client.sendall(b"GET /health/generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        message = server.take_request()
        assert message.sampling_params.max_tokens == 1
        server.send(step(finals=(final(message, "x", (1,)),)))
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"status":"ok"' in received


def test_health_generate_has_a_deadline_and_aborts(server: FrontendRun):
    response = server.client.get("/health/generate", params={"timeout_s": 0.2})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "probe_timeout")
    message = server.take_request()
    assert server.take_abort().uid == message.uid
    server.send(step(finals=(final(message, finish_reason="abort"),)))
    wait_until(lambda: server.gauge("requests") == 0)
    for bad in ("0", "x", "nan", "1e9"):
        assert server.client.get("/health/generate", params={"timeout_s": bad}).status_code == 400


def test_models_version_and_server_info(server: FrontendRun):
    models = server.client.get("/v1/models").json()
    assert models["object"] == "list"
    assert [card["id"] for card in models["data"]] == ["org/m", "m"]
    card = server.client.get("/v1/models/org/m").json()
    assert (card["object"], card["max_model_len"], card["id"]) == ("model", 512, "org/m")
    missing = server.client.get("/v1/models/zzz").json()["error"]
    assert (missing["message"], missing["code"]) == ("The model `zzz` does not exist", "model_not_found")
    assert server.client.get("/version").json()["version"]
    info = server.client.get("/server_info").json()
    assert info["config"]["scheduling"]["max_num_seqs"] == 256
    assert info["model"]["vocab_size"] == 1000


def test_a_full_server_reports_when_to_come_back():
    config = make_config(scheduling=SchedulingConfig(max_num_seqs=1, max_queued_requests=1))
    with FrontendRun(config) as run, run.call() as one, run.call() as two:
        messages = [run.take_request(), run.take_request()]
        refused = run.client.post("/generate", json={"prompt": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        run.send(step(finals=tuple(final(message, "x", (1,)) for message in messages)))
        assert one.events()
        assert two.events()
        run.round_trip()


def test_an_abandoned_request_counts_until_its_final():
    config = make_config(scheduling=SchedulingConfig(max_num_seqs=1, max_queued_requests=0))
    with FrontendRun(config) as run:
        with run.call():
            message = run.take_request()
        run.take_abort()
        assert run.client.post("/generate", json={"prompt": "hi"}).status_code == 503
        run.send(step(finals=(final(message, finish_reason="abort"),)))
        wait_until(lambda: run.gauge("requests") == 0)
        run.round_trip()


def test_a_drain_lets_what_runs_finish():
    with FrontendRun() as run, run.call() as call, socket.create_connection(run.address, timeout=TIMEOUT_S) as idle:
        message = run.take_request()
        idle.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        run.launcher.send("frontend", Drain(60.0))
        while idle.recv(65536):
            pass
        refused = httpx.post(f"{run.url}/generate", json={"prompt": "hi"}, timeout=TIMEOUT_S)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) >= 1
        health = httpx.get(f"{run.url}/health", timeout=TIMEOUT_S)
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        run.send(step([(message, 1, "a")]))
        call.next_event()
        assert not any(isinstance(report, Drained) for report in run.launcher.messages["frontend"])
        run.send(step(finals=(final(message, "b", (2,)),)))
        assert run.launcher.wait_for("frontend", Drained).num_unfinished == 0
        assert [event["text"] for event in call.events()] == ["b"]


def test_a_drain_has_a_deadline_and_a_stop_ends_streams_with_an_error():
    with FrontendRun() as run, run.call({"prompt": "first"}) as started, run.call() as waiting:
        messages = {message.prompt_text: message for message in (run.take_request(), run.take_request())}
        run.send(step([(messages["first"], 1, "a")]))
        assert started.response.status == 200
        run.launcher.send("frontend", Drain(0.3))
        assert run.launcher.wait_for("frontend", Drained).num_unfinished == 2
        run.launcher.send("frontend", Stop())
        assert run.launcher.wait_exit("frontend") == 0
        assert (waiting.response.status, waiting.json()["error"]["code"]) == (503, "shutting_down")
        events = started.events()
        assert events[0]["text"] == "a"
        assert events[-1]["error"]["message"] == "the server is shutting down"


def test_a_drain_of_an_idle_server_is_over_at_once():
    with FrontendRun() as run:
        run.launcher.send("frontend", Drain(60.0))
        assert run.launcher.wait_for("frontend", Drained).num_unfinished == 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "lifeline", "stuck reader"])
def test_it_ends_soon(how: str):
    with FrontendRun() as run, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(run.address)
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b'Content-Length: 16\r\n\r\n{"prompt": "hi"}')
        message = run.take_request()
        if how == "stuck reader":
            for token_id in range(600):
                run.send(step([(message, token_id, "x" * 20_000)]))
            run.round_trip()
        if how == "lifeline":
            run.launcher.abandon()
        else:
            run.process.send_signal(signal.SIGINT if how == "SIGINT" else signal.SIGTERM)
        assert run.launcher.wait_exit("frontend") == 0


def test_the_launcher_may_hand_down_the_listening_socket():
    with FakeLauncher(make_config(HttpConfig(port=1))) as launcher, socket.create_server(("127.0.0.1", 0)) as listener:
        launcher.open_receiver("tokenizer", ToTokenizer)
        descriptor = listener.fileno()
        launcher.processes["frontend"] = subprocess.Popen(
            [sys.executable, "-m", "frontend", "--run-dir", str(launcher.run_dir.path)],
            cwd=ROOT,
            env={**os.environ, LISTEN_FD: str(descriptor)},
            pass_fds=(descriptor,),
        )
        launcher.wait_for("frontend", Ready)
        host, port = listener.getsockname()
        assert httpx.get(f"http://{host}:{port}/health", timeout=TIMEOUT_S).json()["status"] == "starting"
        assert not launcher.run_dir.address_file.exists()


def test_a_port_in_use_is_a_boot_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with FakeLauncher(make_config(HttpConfig(port=port))) as launcher:
            launcher.start("frontend")
            failure = launcher.wait_for("frontend", BootFailed)
            assert f"port {port}" in failure.message
            assert launcher.wait_exit("frontend") == 1


def test_prompts_are_logged_on_request():
    with FrontendRun(make_config(run=RunConfig(log_requests=True))) as run:
        run.round_trip()
        assert "prompt='hi' params=SamplingParams(max_tokens=128" in run.launcher.log_text("frontend")


def test_prompts_are_not_logged_unasked():
    with FrontendRun(make_config(run=RunConfig(log_level="debug"))) as run:
        with run.call({"prompt": "a secret", "stream": False}) as call:
            run.send(final(run.take_request(), "its secret reply", (1,)))
            assert call.response.status == 200
        assert run.client.post("/generate", json={"prompt": "a secret", "temperature": 3}).status_code == 400
        assert "POST /generate" in run.launcher.log_text("frontend")
        assert "secret" not in run.launcher.log_text("frontend")


def test_an_idle_frontend_is_small_and_sleeps():
    with FrontendRun() as run:
        run.round_trip()
        run.launcher.wait_for("frontend", Beat)
        begin_ns = time.monotonic_ns()
        before, wakeups = run.process.cpu_times(), run.process.num_ctx_switches().voluntary
        time.sleep(IDLE_S)
        after, rss_bytes = run.process.cpu_times(), run.process.memory_info().rss
        cpu_s = after.user + after.system - before.user - before.system
        num_wakeups = run.process.num_ctx_switches().voluntary - wakeups
        print(f"idle for {IDLE_S} s: {cpu_s:.3f} s of CPU, {num_wakeups} wake-ups, {rss_bytes / 1e6:.1f} MB")
        assert cpu_s <= MAX_IDLE_CPU_S
        assert num_wakeups <= MAX_IDLE_WAKEUPS
        assert rss_bytes <= MAX_RSS_BYTES
        beat = run.launcher.wait_for("frontend", Beat, where=lambda beat: beat.sent_ns > begin_ns)
        names = {"requests", "abandoned_requests", "held_requests", "streams", "connections", "is_draining"}
        assert beat.frontend == FrontendReport(schedulers_seen={"scheduler": 1})
        assert names | {
            "body_bytes",
            "calls",
            "deadlines",
            "placed_requests",
            "requests_on_hold",
            "stored_responses",
            "suspects",
            "timelines",
            "unfinished_traces",
            "viewers",
        } == set(beat.gauges)


def test_a_drain_lets_slow_readers_have_their_ends():
    """All replies have arrived, and the response is larger than the connection's buffer."""
    with FrontendRun() as run, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.settimeout(TIMEOUT_S)
        client.connect(run.address)
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b'Content-Length: 16\r\n\r\n{"prompt": "hi"}')
        message = run.take_request()
        for token_id in range(600):
            run.send(step([(message, token_id, "x" * 20_000)]))
        run.send(step(finals=(final(message),)))
        run.launcher.send("frontend", Drain(TIMEOUT_S))
        with pytest.raises(AssertionError, match="did not report"):
            run.launcher.wait_for("frontend", Drained, timeout_s=0.5)
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            piece = client.recv(1 << 20)
            assert piece, received[-200:]
            received = received[-200:] + piece
        assert run.launcher.wait_for("frontend", Drained) == Drained(0)
