"""The router against models' servers that the test plays."""

import contextlib
import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from extras.models.messages import DescribeModel, Description, StartModel, StopModel
from frontend.http.access import check_is_local
from messages.config.server import HttpConfig
from messages.control.processes import Drain, Drained, Leave
from messages.errors import RequestError
from tests.extras.models.router_run import CHUNKED, LAST_CHUNK, LOADING, OK, READY, TIMEOUT_S, Arrived, RouterRun, chunk
from tests.frontend.frontend_run import wait_until


@pytest.fixture(scope="module")
def _run() -> Iterator[RouterRun]:
    with RouterRun(http=HttpConfig(port=0, max_body_mb=0.125)) as run:
        yield run


@pytest.fixture
def run(_run: RouterRun) -> Iterator[RouterRun]:
    """A router without requests and loaded models."""
    yield _run
    for name in tuple(_run.servers):
        _run.client.post("/models/unload", json={"model": name})
    wait_until(lambda: not _run.servers)
    wait_until(
        lambda: all(model["state"] == "unloaded" for model in _run.client.get("/health").json()["models"].values())
    )
    assert _run.gauge("requests") == _run.gauge("on_hold") == 0
    while not _run.asked.empty():
        _run.asked.get()
    assert "Traceback" not in _run.launcher.log_text("frontend")


def test_a_request_loads_its_model_and_is_forwarded_unchanged(run: RouterRun):
    body = b'{"model": "a",  "prompt": "x", "unknown": [1, 2]}'
    headers = {"X-Request-Id": "mine", "Origin": "http://localhost", "X-Other": "1"}
    headers["Host"] = "localhost"
    with run.ask(body, "/v1/completions?x=%20y", headers=headers) as asked:
        assert run.next_order(StartModel) == "a"
        wait_until(lambda: "a" in run.servers)
        arrived = run.servers["a"].take()
        assert (arrived.method, arrived.target, arrived.body) == ("POST", "/v1/completions?x=%20y", body)
        assert arrived.headers["x-request-id"] == "mine"
        assert arrived.headers["x-other"] == "1"
        assert "origin" not in arrived.headers
        assert "x-forwarded-for" not in arrived.headers
        arrived.answer()
        reply = asked.reply()
    assert (reply.status_code, reply.json()) == (200, {})
    assert float(reply.headers["x-model-load-ms"]) == pytest.approx(
        int(arrived.headers["x-model-load-ns"]) / 1e6, abs=0.1
    )
    assert reply.headers["x-model-load-ms"] != "0.0"
    assert len(reply.headers.get_list("date")) == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/completions", {"error": {"type": "not_found_error", "param": "model", "code": "model_not_found"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "not_found_error"}}),
        ("/api/chat", {}),
    ],
)
def test_an_unknown_model_is_refused_in_the_form_of_its_api(run: RouterRun, path: str, expected: dict[str, Any]):
    reply = run.client.post(path, json={"model": "c"})
    assert reply.status_code == 404
    text = "The model `c` does not exist: the models are a, b"
    fields = reply.json()
    if not expected:
        assert fields == {"error": "model 'c' not found: the models are a, b"}
        return
    assert fields["error"].pop("message") == text
    assert fields == expected


def test_a_request_without_a_model_goes_to_the_only_one_that_is_loaded(run: RouterRun):
    reply = run.client.post("/v1/completions", json={"prompt": "x"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert "a, b" in reply.json()["error"]["message"]
    server = run.load("b")
    for body in ({"prompt": "x"}, b"no json", {"model": 5}):
        with run.ask(body) as asked:
            server.take().answer()
            assert asked.reply().status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/completions", {"model": "b"}, {"X-Model": "a"}),
        ("/v1/completions?model=b", b"", {"X-Model": "a"}),
        ("/v1/completions?x=1&model=b&y=%20", b"", {}),
        ("/v1/completions", b"", {"X-Model": "%62"}),
        ("/api/chat", {"model": "b:latest"}, {}),
        ("/api/chat", {"name": "b"}, {}),
        ("/v1/completions", {"model": "other/b"}, {}),
        ("/api/chat", {"model": "b"}, {"Content-Type": ""}),
    ],
)
def test_the_model_is_named_by_the_body_the_query_or_a_header(
    run: RouterRun, path: str, body: Any, headers: dict[str, str]
):
    run.load("a")
    server = run.load("b")
    with run.ask(body, path, headers=headers) as asked:
        arrived = server.take()
        arrived.answer()
        assert asked.reply().status_code == 200
    assert arrived.target in ("/v1/completions", "/api/chat", "/v1/completions?x=1&y=%20")


def test_an_id_without_a_model_is_looked_for_at_each_loaded_model(run: RouterRun):
    first, second = run.load("a"), run.load("b")
    missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 1\r\n\r\n1"
    with run.ask(b"", "/v1/responses/resp_1", "GET") as asked:
        first.take().answer(missing)
        second.take().answer()
        assert asked.reply().status_code == 200
    with run.ask(b"", "/v1/responses/resp_1", "DELETE") as asked:
        first.take().answer(missing)
        second.take().answer(missing.replace(b"1\r\n\r\n1", b"1\r\n\r\n2"))
        reply = asked.reply()
        assert (reply.status_code, reply.text) == (404, "2")


def test_a_stream_passes_as_it_comes(run: RouterRun):
    server = run.load("a")
    with run.ask({"model": "a"}, is_streamed=True) as asked:
        arrived = server.take()
        arrived.send(CHUNKED)
        pieces = asked.pieces()
        for piece in (b"data: 1\n\n", b": still here\n\n", b"data: [DONE]\n\n"):
            arrived.send(chunk(piece))
            assert next(pieces) == piece
        arrived.answer(LAST_CHUNK)
        assert next(pieces, None) is None
        assert asked.reply().headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("sent", [CHUNKED + chunk(b"data: 1\n\n"), OK[:-1]])
def test_a_reply_that_is_cut_off_is_an_error_for_the_client(run: RouterRun, sent: bytes):
    server = run.load("a")
    with run.ask({"model": "a"}) as asked:
        arrived = server.take()
        arrived.send(sent)
        arrived.cut()
        assert isinstance(asked.reply(), httpx.RemoteProtocolError)
    wait_until(lambda: "client=cut off" in run.launcher.log_text("frontend"))


def test_a_client_that_leaves_ends_the_request_at_the_model(run: RouterRun):
    server = run.load("a")
    with run.ask({"model": "a"}, is_streamed=True) as asked:
        arrived = server.take()
        arrived.send(CHUNKED + chunk(b"data: 1\n\n"))
        next(asked.pieces())
        asked.leave()
        arrived.wait_gone()


@pytest.mark.parametrize("last_words", [b"", b"HTTP/1.1 503 X\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1"])
def test_a_request_is_sent_again_if_the_server_ends_before_it_answers(run: RouterRun, last_words: bytes):
    server = run.load("a")
    assert run.next_order(StartModel) == "a"
    with run.ask({"model": "a"}) as asked:
        server.take().answer(last_words)
        run.end("a", "killed by SIGKILL")
        assert run.next_order(StartModel) == "a"
        run.next_server("a", server).take().answer()
        assert asked.reply().status_code == 200


def test_a_request_that_ends_every_server_is_refused(run: RouterRun):
    server = run.load("a")
    with run.ask({"model": "a"}) as asked:
        for num_ended in range(3):
            server.take()
            run.end("a", "killed by SIGKILL")
            server = run.next_server("a", server) if num_ended < 2 else server
        reply = asked.reply()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_gone")


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced(run: RouterRun):
    server = run.load("a")
    for _ in range(2):
        with run.ask({"model": "a"}) as asked:
            server.take().answer()
            assert asked.reply().status_code == 200
        server.close_connections()


def test_a_load_that_fails_ends_the_requests_that_wait_and_the_next_one_tries_again(run: RouterRun):
    run.health = LOADING
    with run.ask({"model": "a"}) as asked:
        assert run.next_order(StartModel) == "a"
        wait_until(lambda: run.state("a").get("phase") == "reading weights")
        run.end("a", "it needs more memory")
        reply = asked.reply()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_failed")
        assert "it needs more memory" in reply.json()["error"]["message"]
    assert run.state("a")["error"] == "it needs more memory"
    run.health = READY
    run.load("a")
    assert "error" not in run.state("a")


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_request_for_a_model_that_could_not_be_read_waits_for_another_look(run: RouterRun, is_mended: bool):
    whole, broken = run.reports["a"].description, Description(error="no weights")
    run.report("a", description=broken)
    wait_until(lambda: "no weights" in run.client.get("/models").text)
    with run.ask({"model": "a"}) as asked:
        assert run.asked.get(timeout=TIMEOUT_S) == DescribeModel("a")
        run.report("a", description=None)
        wait_until(lambda: "no weights" not in run.client.get("/models").text)
        run.report("a", description=whole if is_mended else broken)
        if is_mended:
            run.next_server("a").take().answer()
        reply = asked.reply()
    assert reply.status_code == (200 if is_mended else 400)
    assert is_mended or "no weights" in reply.json()["error"]["message"]
    run.report("a", description=whole)


def test_a_report_from_before_the_order_to_read_files_again_refuses_nothing(run: RouterRun):
    whole, broken = run.reports["a"].description, Description(error="no weights")
    run.report("a", description=broken)
    wait_until(lambda: "no weights" in run.client.get("/models").text)
    with run.ask({"model": "a"}) as asked:
        assert run.asked.get(timeout=TIMEOUT_S) == DescribeModel("a")
        run.report("b", error="another")  # as if the host had sent both before it got the order
        wait_until(lambda: run.state("b").get("error") == "another")
        assert run.gauge("on_hold") == 1
        run.report("a", description=None)
        wait_until(lambda: "no weights" not in run.client.get("/models").text)
        run.report("a", description=whole)
        run.next_server("a").take().answer()
        assert asked.reply().status_code == 200
    run.report("b", error="")


def test_a_model_that_never_fits_is_refused_with_the_numbers():
    with RouterRun({"a": 1, "big": 5}) as run:
        for path, body in (("/v1/completions", {"model": "big"}), ("/models/load", {"model": "big"})):
            reply = run.client.post(path, json=body)
            assert reply.status_code == 400
            assert "5 GiB" in reply.json()["error"]["message"]
        assert run.asked.empty()


def test_a_request_does_not_wait_longer_than_the_hold():
    with RouterRun(hold_s=0.3) as run:
        run.health = LOADING
        reply = run.client.post("/v1/completions", json={"model": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_loading")
        assert int(reply.headers["retry-after"]) > 0
        assert (reply.headers["x-model-phase"], reply.headers["x-model-progress"]) == ("reading weights", "0.500")
        assert run.gauge("on_hold") == 0


def test_only_so_many_requests_wait():
    with RouterRun(max_waiting=1, preloaded="b") as run:
        wait_until(lambda: run.state("b")["state"] == "loaded")
        run.health = LOADING
        with run.ask({"model": "a"}) as asked:
            wait_until(lambda: run.gauge("on_hold") == 1)
            reply = run.client.post("/v1/completions", json={"model": "a"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_full")
            with run.ask({"model": "b"}, headers={"X-Model-Load-Ns": "5"}) as other:
                arrived = run.next_server("b").take()
                assert "x-model-load-ns" not in arrived.headers, "only the router knows it"
                arrived.answer()
                assert "x-model-load-ms" not in other.reply().headers
            run.next_server("a").health = READY
            run.servers["a"].take().answer()
            assert asked.reply().status_code == 200


def test_a_path_below_that_of_a_proxy_is_forwarded_without_it():
    with RouterRun(http=HttpConfig(port=0, root_path="/llm")) as run:
        server = run.load("a")
        for path in ("/llm/v1/completions", "/v1/completions"):
            with run.ask({"model": "a"}, path) as asked:
                arrived = server.take()
                assert arrived.target == "/v1/completions"
                arrived.answer()
                assert asked.reply().status_code == 200


def test_a_client_that_leaves_waits_no_more(run: RouterRun):
    run.health = LOADING
    client = http.client.HTTPConnection(*run.address)
    client.request("POST", "/v1/completions", b'{"model": "a"}', {"Content-Type": "application/json"})
    wait_until(lambda: run.gauge("on_hold") == 1)
    client.close()
    wait_until(lambda: run.gauge("on_hold") == run.gauge("requests") == 0)
    run.health = READY
    run.next_server("a").health = READY


def test_a_model_makes_room_for_another_when_its_requests_have_ended():
    with RouterRun({"a": 3, "b": 3}) as run:
        server = run.load("a")
        assert run.next_order(StartModel) == "a"
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(run.ask({"model": "a"}))
            arrived = server.take()
            other = stack.enter_context(run.ask({"model": "b"}))
            wait_until(lambda: run.gauge("on_hold") == 1)
            last = stack.enter_context(run.ask({"model": "a"}))
            wait_until(lambda: run.gauge("on_hold") == 2)
            assert server.arrived.empty()
            arrived.answer()
            assert first.reply().status_code == 200
            assert (run.next_order(StopModel), run.next_order(StartModel)) == ("a", "b")
            run.next_server("b").take().answer()
            assert other.reply().status_code == 200
            assert (run.next_order(StopModel), run.next_order(StartModel)) == ("b", "a")
            run.next_server("a", server).take().answer()
            assert last.reply().status_code == 200


def test_keep_alive_of_a_request_unloads_its_model(run: RouterRun):
    server = run.load("a")
    assert run.next_order(StartModel) == "a"
    with run.ask({"model": "a", "prompt": "x", "keep_alive": 0}, "/api/generate") as asked:
        server.take().answer()
        assert asked.reply().status_code == 200
        assert run.next_order(StopModel) == "a"
    reply = run.client.post("/api/generate", json={"model": "a", "keep_alive": "0s"})
    assert (reply.json()["done_reason"], reply.json()["model"]) == ("unload", "a")
    assert run.asked.empty()


def test_an_image_is_a_prompt_and_is_passed_on_as_it_came(run: RouterRun):
    server = run.load("a")
    body = {"model": "a", "images": ["A" * 20_000], "keep_alive": 0}
    with run.ask(body, "/api/generate") as asked:
        arrived = server.take()
        assert json.loads(arrived.body)["images"] == body["images"]
        arrived.answer()
        assert asked.reply().status_code == 200


@pytest.mark.parametrize(
    "keep_alive", ["soon", "1" * 60 + "x", "1" * 10_000, [1] * 20_000, True, {"a": "b"}, "x" * 100_000, "\u20ac" * 300]
)
@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions", "/elsewhere"])
def test_what_is_no_time_is_refused_and_hardly_shown(run: RouterRun, path: str, keep_alive: Any):
    before_s = cpu_s(run)
    reply = run.client.post(path, json={"model": "a", "keep_alive": keep_alive})
    assert reply.status_code == 400
    assert "keep_alive" in reply.text
    assert len(reply.content) < 800
    assert cpu_s(run) - before_s < 1
    assert run.asked.empty()


@pytest.mark.parametrize("model", ["x" * 100_000, [[]] * 30_000, {"a": 1}, "y" * 500])
def test_a_name_of_any_size_is_neither_decoded_nor_shown(run: RouterRun, model: Any):
    reply = run.client.post("/api/chat", json={"model": model})
    assert reply.status_code in (400, 404)
    assert len(reply.content) < 300
    assert run.asked.empty()


def test_a_model_may_be_named_twice_in_one_way(run: RouterRun):
    server = run.load("a")
    with run.ask({"name": "a", "model": "a"}, "/api/chat") as asked:
        server.take().answer()
        assert asked.reply().status_code == 200
    reply = run.client.post("/api/chat", json={"model": "a", "name": "b"})
    assert (reply.status_code, "two different models" in reply.text) == (400, True)


def test_lines_arrive_in_chunks_of_their_own(run: RouterRun):
    """Some of Ollama's clients parse each chunk as one document."""
    server = run.load("a")
    head = CHUNKED.replace(b"text/event-stream", b"application/x-ndjson")
    with run.ask({"model": "a", "prompt": "x"}, "/api/generate", is_streamed=True) as asked:
        arrived = server.take()
        arrived.send(head + chunk(b"{1}\n") + chunk(b"{2}\n") + chunk(b"{3"))
        pieces = asked.pieces()
        assert [next(pieces), next(pieces)] == [b"{1}\n", b"{2}\n"]
        arrived.answer(chunk(b"}\n{4}\n") + chunk(b"5") + LAST_CHUNK)
        assert [*pieces] == [b"{3}\n", b"{4}\n", b"5"]


def test_a_request_that_only_looks_neither_loads_a_model_nor_keeps_it(run: RouterRun):
    reply = run.client.get("/live", headers={"X-Model": "a"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_loading")
    assert run.asked.empty()
    server = run.load("a")
    with run.ask(b"", "/live?model=a", "GET", is_streamed=True) as asked:
        server.take().send(CHUNKED + chunk(b"1"))
        assert next(asked.pieces()) == b"1"
        assert run.gauge("requests") == 0
        assert run.client.post("/models/unload", json={"model": "a"}).json() == {"success": True}
        wait_until(lambda: run.state("a")["state"] == "unloaded")


def test_a_server_with_requests_of_its_own_is_not_stopped(run: RouterRun):
    server = run.load("a")
    busy = {"status": "ready", "processes": {"frontend": {"gauges": {"requests": 1}}}}
    server.health = 200, busy
    run.client.post("/models/unload", json={"model": "a"})
    num_looks = server.num_looks
    run.client.post("/models/unload", json={"model": "a"})
    wait_until(lambda: server.num_looks > num_looks)
    assert run.state("a")["state"] == "loaded"
    stale = {"frontend": {"gauges": {"requests": 0}}, "scheduler": {"gauges": {"requests": 1}}}
    server.health = 200, {"status": "ready", "processes": stale}
    wait_until(lambda: run.state("a")["state"] == "unloaded")


def test_models_are_loaded_and_unloaded_by_command(run: RouterRun):
    run.load("a")
    run.load("a")
    for _ in range(2):
        assert run.client.post("/models/unload", json={"model": "a"}).json() == {"success": True}
        wait_until(lambda: run.state("a")["state"] == "unloaded")
    for path in ("/models/load", "/models/unload"):
        assert run.client.post(path, json={"model": "c"}).status_code == 404
        assert run.client.post(path, json={}).status_code == 400


def test_a_head_and_an_empty_reply_pass(run: RouterRun):
    server = run.load("a")
    with run.ask(b"", "/load?model=a", "HEAD") as asked:
        server.take().answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        reply = asked.reply()
        assert (reply.headers["content-length"], reply.content) == ("5", b"")
    with run.ask(b"", "/load?model=a", "OPTIONS") as asked:
        server.take().answer(b"HTTP/1.1 204 No Content\r\nallow: GET\r\n\r\n")
        reply = asked.reply()
        assert (reply.status_code, reply.headers["allow"]) == (204, "GET")


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\n" + OK,
        CHUNKED + chunk(b"{}") + b"0\r\nx-late: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: x-hop\r\nkeep-alive: timeout=5\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_only_the_response_itself_is_passed_on(run: RouterRun, sent: bytes):
    server = run.load("a")
    with run.ask({"model": "a"}) as asked:
        server.take().answer(sent)
        reply = asked.reply()
        assert (reply.status_code, reply.text) == (200, "{}")
        assert not {"x-early", "x-late", "keep-alive", "connection"} & set(reply.headers)


def test_a_reply_that_is_no_http_is_refused(run: RouterRun):
    server = run.load("a")
    with run.ask({"model": "a"}) as asked:
        for _ in range(3):
            server.take().answer(b"+OK hello\r\n\r\n")
        assert (asked.reply().status_code, asked.reply().json()["error"]["code"]) == (503, "model_gone")


def test_a_body_that_is_not_json_is_forwarded(run: RouterRun):
    server = run.load("a")
    data = bytes(range(256)) * 64
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    for content in (data, iter([data[:1000], data[1000:]])):
        with run.ask(content, "/v1/files?model=a", headers=kind) as asked:
            arrived = server.take()
            assert (arrived.body, arrived.headers["content-type"]) == (data, kind["Content-Type"])
            arrived.answer()
            assert asked.reply().status_code == 200


def test_a_body_beyond_the_limit_is_refused(run: RouterRun):
    run.load("a")
    reply = run.client.post("/v1/completions", json={"model": "a", "prompt": "x" * 2**20})
    assert reply.status_code == 413


def test_a_client_that_reads_slowly_slows_down_the_server(run: RouterRun):
    server = run.load("a")
    peak_bytes = peak_of(run)
    with run.ask({"model": "a"}, is_streamed=True) as asked:
        arrived = server.take()
        piece, num_pieces = b"x" * 2**20, 64
        sender = threading.Thread(target=send_many, args=(arrived, piece, num_pieces))
        sender.start()
        wait_blocked(arrived.connection)
        assert sum(map(len, asked.pieces())) == len(piece) * num_pieces
        sender.join()
    assert peak_of(run) - peak_bytes < 16 * 2**20


def test_a_foreign_page_gets_one_set_of_headers_and_no_operator_endpoint():
    page = "https://page.example"
    with RouterRun(http=HttpConfig(port=0, cors_allow_origins=(page,))) as run:
        server = run.load("a")
        with run.ask({"model": "a"}, "/admin/restart", headers={"Origin": page}) as asked:
            arrived = server.take()
            headers = [(name.encode(), value.encode()) for name, value in arrived.headers.items()]
            with pytest.raises(RequestError, match="own machine"):
                check_is_local(("127.0.0.1", 1), "http", headers)
            arrived.answer()
            assert asked.reply().headers.get_list("access-control-allow-origin") == [page]
        reply = run.client.post("/v1/completions", json={"model": "a"}, headers={"Origin": "https://other.example"})
        assert reply.status_code == 403


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_a_client_behind_a_proxy_cannot_hide_it_by_the_connection_header(run: RouterRun, header: str):
    server = run.load("a")
    with run.ask({"model": "a"}, "/admin/restart", headers={header: "192.0.2.1", "Connection": header}) as asked:
        arrived = server.take()
        assert "x-forwarded-for" in arrived.headers
        arrived.answer()
        assert asked.reply().status_code == 200


def test_keys_are_checked_before_anything_is_loaded():
    with RouterRun(http=HttpConfig(port=0, api_key=("secret",))) as run:
        for path in ("/v1/completions", "/models/load", "/models/unload"):
            assert run.client.post(path, json={"model": "a"}).status_code == 401
        assert run.client.get("/requests").status_code == 401
        assert [run.client.get(path).status_code for path in ("/health", "/ping", "/version", "/", "/pipeline")] == [
            200
        ] * 5
        assert run.asked.empty()
        run.client.headers["Authorization"] = "Bearer secret"
        run.load("a")


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_models_own_key_is_the_only_one_that_opens_it(is_shared: bool):
    shared, own = {"Authorization": "Bearer shared"}, {"Authorization": "Bearer own"}
    http_config = HttpConfig(port=0, api_key=("shared",) * is_shared)
    with RouterRun(http=http_config, flags_of={"a": ("--api-key=own",)}) as run:
        for path in ("/v1/completions", "/models/load", "/models/unload"):
            for headers in (shared, {}):
                assert run.client.post(path, json={"model": "a"}, headers=headers).status_code == 401
        assert run.client.post("/api/chat", json={"model": "a", "keep_alive": 0}, headers=shared).status_code == 401
        assert run.asked.empty()
        expected = 401 if is_shared else 200
        assert run.client.post("/models/load", json={"model": "b"}, headers=own).status_code == expected
        with run.ask({"model": "a"}, headers=own) as asked:
            run.next_server("a").take().answer()
            assert asked.reply().status_code == 200
        with run.ask({"model": "b"}, headers=shared) as asked:
            run.next_server("b").take().answer()
            assert asked.reply().status_code == 200
        with run.ask(b"", "/v1/responses/resp_1", "GET", shared) as asked:  # "a" is not asked
            run.servers["b"].take().answer()
            assert asked.reply().status_code == 200


def test_a_router_that_is_replaced_finishes_its_streams():
    with RouterRun() as run:
        server = run.load("a")
        with run.ask({"model": "a"}, is_streamed=True) as asked:
            arrived = server.take()
            arrived.send(CHUNKED + chunk(b"1"))
            pieces = asked.pieces()
            assert next(pieces) == b"1"
            run.launcher.send("frontend", Leave(30.0))
            arrived.answer(chunk(b"2") + LAST_CHUNK)
            assert b"".join(pieces) == b"2"
        run.client.close()
        assert run.launcher.wait_for("frontend", Drained) == Drained(0)


def test_a_leaving_router_ends_what_only_looks():
    with RouterRun() as run:
        server = run.load("a")
        with run.ask(b"", "/live?model=a", "GET", is_streamed=True) as asked:
            arrived = server.take()
            arrived.send(CHUNKED + chunk(b"1"))
            pieces = asked.pieces()
            next(pieces)
            run.launcher.send("frontend", Leave(30.0))
            with pytest.raises(httpx.RemoteProtocolError):
                next(pieces)
        run.client.close()
        assert run.launcher.wait_for("frontend", Drained) == Drained(0)


def test_a_draining_router_takes_no_new_requests():
    with RouterRun() as run:
        server = run.load("a")
        with run.ask({"model": "a"}) as asked:
            arrived = server.take()
            run.launcher.send("frontend", Drain(30.0))
            wait_until(lambda: run.status() == "draining")
            reply = run.client.post("/v1/completions", json={"model": "a"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
            arrived.answer()
            assert asked.reply().status_code == 200
        assert run.launcher.wait_for("frontend", Drained) == Drained(0)


def test_the_access_log_names_the_model(run: RouterRun):
    server = run.load("a")
    with run.ask({"model": "a"}, headers={"X-Request-Id": "logged"}) as asked:
        server.take().answer()
        asked.reply()
    wait_until(lambda: "id=logged" in run.launcher.log_text("frontend"))
    line = next(line for line in run.launcher.log_text("frontend").splitlines() if "id=logged" in line)
    assert "POST /v1/completions 200 model=a" in line


def cpu_s(run: RouterRun) -> float:
    """Returns the processor time of the router so far."""
    fields = (
        Path(f"/proc/{run.launcher.processes['frontend'].pid}/stat").read_text(encoding="ascii").split(")")[1].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(run: RouterRun) -> int:
    """Returns the most memory that the router has used, in bytes."""
    status = Path(f"/proc/{run.launcher.processes['frontend'].pid}/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def send_many(arrived: Arrived, piece: bytes, num_pieces: int) -> None:
    arrived.send(CHUNKED)
    for _ in range(num_pieces):
        arrived.send(chunk(piece))
    arrived.answer(LAST_CHUNK)


def wait_blocked(connection: socket.socket) -> None:
    """Waits until the connection's other end does not read any more."""
    while select.select([], [connection], [], 0.3)[1]:
        time.sleep(0.01)
