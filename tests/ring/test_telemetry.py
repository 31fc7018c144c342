"""Telemetry of a real server: every log line as JSON, and a trace of each request through a restart."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.server_process import ServerProcess
from tests.extras.tracing.collector import Collector, values
from tests.fork_host import ForkHost
from tests.frontend.frontend_run import InThread, wait_until
from tests.ring.client import TIMEOUT_S, RingClient, body

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otlp")

pytestmark = pytest.mark.ring

READY_TIMEOUT_S = 120.0
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = {"accept", "tokenizer_queue", "tokenize", "scheduler_inbox", "queue", "prefill", "decode", "detokenize"}
STAGES |= {"deliver", "send"}


class Told(dict[str, Any]):
    """`requests`: what /requests showed of each request by its id; `processes`; `lines`: the log; `exit_code`."""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def post(url: str, request_id: str, **headers: str) -> httpx.Response:
    request = body("To be", max_tokens=8, ignore_eos=True, stream=False)
    return httpx.post(
        f"{url}/generate", json=request, headers={"x-request-id": request_id, **headers}, timeout=TIMEOUT_S
    )


@pytest.fixture(scope="module")
def reported(tiny_checkpoint: Path, fork_host: ForkHost) -> Iterator[tuple[Collector, Told]]:
    """A server that served a request, another while its detokenizer died, and one that is not sampled."""
    reported = Told()
    with Collector() as collector:
        flags = ["--model", str(tiny_checkpoint), "--cpu-threads", "1", "--dtype", "float32"]
        server = ServerProcess(
            [*flags, "--tokenizer-workers", "2", "--log-format", "json", "--otlp-endpoint", collector.address],
            open_process=fork_host.open,
        )
        try:
            target = server.wait_until_ready(READY_TIMEOUT_S)
            client = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
            assert post(client.url, "plain", traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01").status_code == 200
            assert post(client.url, "unsampled", traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00").status_code == 200
            with stopped(client.status("detokenizer")["pid"]):
                interrupted = InThread(lambda: post(client.url, "interrupted"))
                wait_until(lambda: client.gauges("frontend")["requests"] == 1, TIMEOUT_S)
            assert interrupted.result().status_code == 200
            client.wait_for_restart("detokenizer", 1)
            client.wait_until_empty()
            # A server that ends waits only for a moment for a slow collector.
            wait_until(lambda: len(collector.roots()) >= 2, TIMEOUT_S)
            reported["processes"] = set(client.health()["processes"])
            reported["requests"] = {
                name: httpx.get(f"{client.url}/requests/{name}", timeout=TIMEOUT_S).json()["choices"][0]
                for name in ("plain", "interrupted")
            }
        finally:
            reported["exit_code"] = server.stop()
            reported["lines"] = [line for _, line in server.log]
        yield collector, reported


def test_every_line_of_the_log_is_json(reported: tuple[Collector, Told]):
    lines = [json.loads(line) for line in reported[1]["lines"]]
    required = {"time", "level", "process", "pid", "logger", "message"}
    assert all(required <= line.keys() for line in lines)
    assert "launcher" in {line["process"] for line in lines}
    (access,) = [line for line in lines if line.get("request_id") == "plain"]
    assert (access["process"], access["status"], access["completion_tokens"]) == ("frontend", 200, 8)
    assert access["uid"] > 0
    (death,) = [line for line in lines if "SIGKILL" in line["message"]]
    assert death["level"] == "error"
    assert any(line["message"].startswith("ready in ") for line in lines)


def test_the_spans_of_a_request_are_its_timeline(reported: tuple[Collector, Told]):
    collector, shown = reported[0], reported[1]["requests"]["plain"]
    (root,) = [root for root in collector.roots() if values(root.attributes)["sluice.request_id"] == "plain"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    spans = collector.below(root)
    begin_ns = root.start_time_unix_nano
    reported_stages = [(span.name, (span.start_time_unix_nano - begin_ns) / 1e6) for span in spans]
    expected = [(stage["stage"], stage["begin_ms"]) for stage in shown["stages"]]
    assert [name for name, _ in reported_stages] == [name for name, _ in expected]
    assert [ms for _, ms in reported_stages] == pytest.approx([ms for _, ms in expected], abs=0.01)
    assert {name for name, _ in reported_stages} == STAGES
    assert all(begin_ns <= span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert spans[-1].end_time_unix_nano <= root.end_time_unix_nano
    attributes = values(root.attributes)
    assert attributes["gen_ai.usage.output_tokens"] == 8
    assert attributes["gen_ai.usage.input_tokens"] == shown["prompt_tokens"]
    assert attributes["gen_ai.request.temperature"] == 0.0


def test_a_restart_in_the_middle_is_an_event(reported: tuple[Collector, Told]):
    collector, shown = reported[0], reported[1]["requests"]["interrupted"]
    (root,) = [root for root in collector.roots() if values(root.attributes)["sluice.request_id"] == "interrupted"]
    assert root.parent_span_id == b""
    assert "restart" in [event.name for event in root.events]
    spans = collector.below(root)
    assert [span.name for span in spans if span.name == "restart"] == ["restart"] * (shown["attempts"] - 1)
    last = [span.name for span in spans if values(span.attributes)["sluice.attempt"] == shown["attempts"] - 1]
    assert set(last) - {"restart"} == STAGES - {"accept"}


def test_what_the_client_does_not_sample_is_not_sent_and_the_server_ends_well(reported: tuple[Collector, Told]):
    collector, shown = reported
    assert {values(root.attributes)["sluice.request_id"] for root in collector.roots()} == {"plain", "interrupted"}
    assert collector.resource["service.name"] == "sluice"
    assert shown["processes"] == {"frontend", "tokenizer", "tokenizer-2", "scheduler", "detokenizer"}
    assert shown["exit_code"] == 0
