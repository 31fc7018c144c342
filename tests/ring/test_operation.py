"""Features for operators, with real processes: deadlines, aborts, the cache, tokens, metrics, keys and TLS."""

import os
import signal
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.server_process import ServerProcess
from tests.fork_host import ForkHost
from tests.ring.client import RingClient
from tests.ring.test_inject import inject

pytestmark = pytest.mark.ring

LONG: dict[str, Any] = {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": False}
KEY = "sk-ring"
READY_TIMEOUT_S = 90.0
MAX_TRIES = 20


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, "--dtype", "float32", "--max-num-seqs", "2", "--max-num-batched-tokens", "4")


def post(ring: RingClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = httpx.post(f"{ring.url}{path}", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def samples(ring: RingClient) -> dict[str, float]:
    """Returns the metrics whose only label is the model's name."""
    families = text_string_to_metric_families(httpx.get(f"{ring.url}/metrics", timeout=10).text)
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if set(sample.labels) <= {"model_name"}
    }


@pytest.mark.parametrize(
    ("stage", "fields"),
    [
        ("queue", {"timeout_s": 1e-6}),
        ("prefill", {"timeout_s": 0.01, "prompt": [5] * 250, "max_tokens": 6}),
        ("decode", {"timeout_s": 0.03, "max_tokens": 240}),
    ],
)
def test_a_deadline_in_any_stage_returns_what_there_is_and_frees_all(ring: RingClient, stage: str, fields: Any):
    for _ in range(MAX_TRIES):  # one that ends before a busy machine looks at its deadline has ended
        reply = post(ring, "/generate", {**LONG, **fields})
        if reply["finish_reason"] == "timeout":
            break
    assert reply["finish_reason"] == "timeout"
    assert len(reply["token_ids"]) == reply["usage"]["completion_tokens"]
    whole = post(ring, "/generate", {**LONG, **fields, "timeout_s": 60})
    assert whole["finish_reason"] == "length"
    assert whole["token_ids"][: len(reply["token_ids"])] == reply["token_ids"]
    assert len(reply["token_ids"]) < len(whole["token_ids"])
    ring.wait_until_empty()


def test_a_scheduler_that_stands_still_keeps_no_one_waiting(ring: RingClient):
    pid = ring.status("scheduler")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        reply = post(ring, "/generate", {**LONG, "timeout_s": 0.2})
        assert (reply["finish_reason"], reply["usage"]["prompt_tokens"]) == ("timeout", 3)
        assert samples(ring)["sluice_requests_open"] == 1
        assert ring.health()["processes"]["frontend"]["gauges"]["abandoned_requests"] == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    ring.wait_until_empty()
    assert post(ring, "/generate", {**LONG, "max_tokens": 2})["finish_reason"] == "length"


def test_an_abort_by_id_ends_all_choices_with_their_partial_texts(ring: RingClient):
    body = {**LONG, "temperature": 1, "n": 3, "request_id": "mine", "max_tokens": 240}
    for _ in range(MAX_TRIES):  # choices may have ended before the abort comes
        with ThreadPoolExecutor() as pool:
            reply = pool.submit(post, ring, "/v1/completions", body)
            aborted: list[int] = []
            while not aborted and not reply.done():
                aborted = post(ring, "/abort_request", {"request_id": "mine"})["aborted"]
        reasons = [choice["finish_reason"] for choice in reply.result()["choices"]]
        if reasons == ["abort"] * 3:
            break
    assert reasons == ["abort"] * 3
    assert len(aborted) == 3
    ring.wait_until_empty()


def test_tokens_there_and_back(ring: RingClient):
    text = "Hello, wörld! 你好"
    tokens = post(ring, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) == len(text.encode())
    assert tokens["max_model_len"] == 256
    assert post(ring, "/detokenize", {"tokens": tokens["tokens"]})["prompt"] == text
    chat = post(ring, "/tokenize", {"messages": [{"role": "user", "content": text}]})
    assert text in post(ring, "/detokenize", {"tokens": chat["tokens"]})["prompt"]


def test_a_flushed_cache_has_no_hits(ring: RingClient):
    body = {**LONG, "prompt": list(range(3, 67)), "max_tokens": 2}
    post(ring, "/generate", body)
    assert post(ring, "/generate", body)["usage"]["cached_tokens"] > 0
    ring.wait_until_empty()
    assert post(ring, "/flush_cache", {})["num_pages"] > 0
    assert post(ring, "/generate", body)["usage"]["cached_tokens"] == 0


def test_metrics_agree_with_what_clients_got(ring: RingClient):
    ring.wait_until_empty()  # a request is counted when its response is over
    before = samples(ring)
    replies = [post(ring, "/generate", {**LONG, "max_tokens": 5 + i}) for i in range(3)]
    ring.wait_until_empty()
    after = samples(ring)
    usage = [reply["usage"] for reply in replies]

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("vllm:generation_tokens_total") == sum(entry["completion_tokens"] for entry in usage)
    assert grown("vllm:prompt_tokens_total") == sum(entry["prompt_tokens"] for entry in usage)
    assert grown("vllm:time_to_first_token_seconds_count") == 3
    assert grown("vllm:inter_token_latency_seconds_count") == sum(entry["completion_tokens"] - 1 for entry in usage)
    assert grown("vllm:e2e_request_latency_seconds_count") == 3
    assert after["sluice_step_seconds_count"] > 0
    assert after["vllm:prefix_cache_queries_total"] > 0


def test_faults_are_refused_without_the_flag(ring: RingClient):
    pid = ring.status("scheduler")["pid"]
    done = inject(ring, "kill", "scheduler")
    assert done.returncode == 1
    assert "--enable-fault-injection" in done.stdout + done.stderr
    assert ring.status("scheduler")["pid"] == pid


def test_keys_and_tls_through_the_launcher(tiny_checkpoint: Path, tmp_path: Path, fork_host: ForkHost):
    cert, key, keys = (tmp_path / name for name in ("cert.pem", "key.pem", "keys"))
    keys.write_text(f"{KEY}\n")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")
    flags = ["--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--api-key", f"@{keys}"]
    arguments = ["--model", str(tiny_checkpoint), "--cpu-threads", "1", "--dtype", "float32", *flags]
    server = ServerProcess(arguments, open_process=fork_host.open)
    try:
        url = wait_for_address(server)
        with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(cert)), timeout=30) as client:
            wait_until_ready(client)
            assert client.get("/v1/models").status_code == 401
            authorized = {"Authorization": f"Bearer {KEY}"}
            assert client.post("/generate", json=LONG, headers=authorized).json()["finish_reason"] == "length"
            assert KEY not in client.get("/server_info", headers=authorized).text
    finally:
        exit_code = server.stop()
    assert exit_code == 0
    assert url.startswith("https://")
    assert f"address  {url}" in server.log_text()
    assert KEY not in server.log_text()


def wait_for_address(server: ServerProcess) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        file = server.run_dir.address_file
        if file.exists() and (text := file.read_text(encoding="ascii").strip()):
            return text
        time.sleep(0.05)
    raise AssertionError(server.log_text())


def wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("the server was not ready in time")
