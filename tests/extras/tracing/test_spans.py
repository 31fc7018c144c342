"""The trace of a request, from its timeline, and the fate of spans that no collector accepts."""

import logging
import time
from collections import Counter
from typing import Any

import pytest

from frontend.requests.timeline import ChunkSpan, Outcome, Timeline
from messages.ring.replies import Usage, UserReply
from messages.ring.requests import Stamps
from tests.extras.tracing.collector import Collector, values
from tests.frontend.frontend_run import wait_until

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otlp")

from extras.tracing.export import MAX_QUEUED, SpanExport, traces_url
from extras.tracing.finished import Choice, FinishedRequest

WAIT_S = 90.0
OFFSET_NS = 1_700_000_000_000_000_000

STAMPS = Stamps(100, 130, 140, 150, 160, 170, 180, 120)
STAGES = ["accept", "tokenizer_queue", "tokenize", "scheduler_inbox", "queue", "prefill", "decode", "detokenize"]
STAGES += ["deliver", "send"]

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def ended(uid: int = 1, index: int = 0, reason: Any = "stop") -> Timeline:
    timeline = Timeline(uid, "r", index, 100, 0)
    timeline.send(110)
    timeline.record_chunk(ChunkSpan(150, 1, 5), 140)
    timeline.finish(UserReply(uid, 0, reason, usage=Usage(5, 1, 3), stamps=STAMPS), 190)
    return end(timeline, reason)


def end(timeline: Timeline, reason: Any = "stop") -> Timeline:
    timeline.end_ns = 200
    timeline.outcome = Outcome(reason, 3, ())
    return timeline


def request(*timelines: Timeline, status: int = 200, path: str = "/v1/chat/completions", **parent: str) -> Any:
    choices = tuple(Choice(timeline, 165, {"gen_ai.request.temperature": 0.5}) for timeline in timelines)
    return FinishedRequest("POST", path, "r", status, 100, 210, OFFSET_NS, parent, choices)


def exported(*requests: FinishedRequest) -> Collector:
    with Collector() as collector:
        export = SpanExport(collector.address, "org/m")
        for entry in requests:
            export.add(entry)
        export.close()
        wait_until(lambda: export.num_spans["exported"] == len(collector.spans), WAIT_S)
        assert set(export.num_spans) <= {"exported"}
    return collector


def times(span: Any) -> tuple[int, int]:
    return span.start_time_unix_nano - OFFSET_NS, span.end_time_unix_nano - OFFSET_NS


def test_each_stage_is_a_span_below_that_of_the_request():
    collector = exported(request(ended()))
    (root,) = collector.roots()
    assert (root.name, root.kind, root.parent_span_id) == ("chat org/m", root.SPAN_KIND_SERVER, b"")
    assert times(root) == (100, 210)
    stages = collector.below(root)
    assert [span.name for span in stages] == STAGES
    assert [times(span) for span in stages] == [(begin, begin + 10) for begin in range(100, 200, 10)]
    (prefill,) = [span for span in stages if span.name == "prefill"]
    ((chunk,),) = [prefill.events]
    assert (chunk.name, values(chunk.attributes)) == ("chunk", {"sluice.first_token": 1, "sluice.end_token": 5})
    assert root.status.code == root.status.STATUS_CODE_UNSET
    assert values(root.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sluice",
        "gen_ai.request.model": "org/m",
        "gen_ai.response.model": "org/m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 65e-9,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "sluice.request_id": "r",
        "sluice.uid": 1,
    }
    assert collector.resource["service.name"] == "sluice"


def test_several_choices_have_a_span_each_with_their_stages_and_usage():
    collector = exported(request(ended(1, 0), ended(2, 1, "length"), path="/v1/completions"))
    (root,) = collector.roots()
    choices = collector.below(root)
    assert [span.name for span in choices] == ["choice 0", "choice 1"]
    assert [values(span.attributes)["gen_ai.response.finish_reasons"] for span in choices] == [["stop"], ["length"]]
    assert all([span.name for span in collector.below(choice)] == STAGES for choice in choices)
    assert values(root.attributes)["gen_ai.request.choice.count"] == 2
    assert "gen_ai.usage.output_tokens" not in values(root.attributes)  # a sum over all spans would count it twice


def test_a_restart_is_an_event_and_the_stages_after_it_are_of_the_next_attempt():
    timeline = Timeline(1, "r", 0, 100, 0)
    timeline.send(110)
    timeline.record_chunk(ChunkSpan(130, 0, 4), 120)
    timeline.interrupt(140)
    timeline.send(150)
    timeline.record_chunk(ChunkSpan(170, 0, 5), 160)
    collector = exported(request(end(timeline)))
    (root,) = collector.roots()
    (event,) = root.events
    assert (event.name, event.time_unix_nano - OFFSET_NS) == ("restart", 140)
    assert values(event.attributes) == {"sluice.attempt": 1}
    stages = [(span.name, values(span.attributes)["sluice.attempt"]) for span in collector.below(root)]
    assert stages[-4:] == [("restart", 1), ("tokenizer_queue", 1), ("queue", 1), ("prefill", 1)]
    assert [len(span.events) for span in collector.below(root) if span.name == "prefill"] == [0, 1]  # planned again


@pytest.mark.parametrize(
    ("parent", "is_sampled"), [(f"00-{TRACE_ID}-{SPAN_ID}-01", True), (f"00-{TRACE_ID}-{SPAN_ID}-00", False)]
)
def test_the_client_decides_about_the_trace(parent: str, is_sampled: bool):
    collector = exported(request(ended(), traceparent=parent, tracestate="vendor=1"))
    assert len(collector.roots()) == is_sampled
    for root in collector.roots():
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
        assert root.trace_state == "vendor=1"


def test_a_traceparent_that_makes_no_sense_begins_a_trace_of_its_own():
    (root,) = exported(request(ended(), traceparent="00-zz-1-01")).roots()
    assert root.parent_span_id == b""


def test_failures_are_errors_and_refusals_are_not():
    broken, refused, unavailable = ended(reason="error"), request(status=400), request(status=503)
    collector = exported(request(broken), refused, unavailable)
    errors = [(values(root.attributes).get("error.type"), root.status.code) for root in collector.roots()]
    assert errors == [("error", 2), (None, 0), ("503", 2)]


def test_an_endpoint_that_is_down_costs_its_spans_and_nothing_else(caplog: pytest.LogCaptureFixture):
    with Collector(status=400) as collector:  # 503 would be tried again
        export = SpanExport(collector.address, "org/m")
        with caplog.at_level(logging.WARNING):
            export.add(request(ended()))
            wait_until(lambda: export.num_spans["export_failed"] == 11, WAIT_S)
            export.add(request(ended()))
            wait_until(lambda: export.num_spans["export_failed"] == 22, WAIT_S)
        assert [record.name for record in caplog.records] == ["sluice.tracing"], "it is said once"
        export.close()


def test_a_full_queue_drops_the_newest_counts_their_spans_and_never_waits():
    entry = request(ended())
    with Collector() as collector:
        collector.hold()
        export = SpanExport(collector.address, "org/m")
        export.add(entry)
        wait_until(lambda: not export._queue, WAIT_S)  # it waits for the collector
        for _ in range(MAX_QUEUED + 3):
            export.add(entry)
        assert export.num_spans == Counter(queue_full=3 * entry.num_spans)
        assert entry.num_spans == 11
        export._queue.clear()
        collector.release()
        export.close()
        wait_until(lambda: export.num_spans["exported"] == 11, WAIT_S)


def test_close_waits_for_a_collector_that_hangs_only_so_long(caplog: pytest.LogCaptureFixture):
    with Collector() as collector:
        collector.hold()
        export = SpanExport(collector.address, "org/m")
        export.add(request(ended()))
        begin_s = time.monotonic()
        export.close()
        assert time.monotonic() - begin_s < 60
        assert "spans are lost" in caplog.text


def test_the_path_of_traces_is_added_to_an_address_alone():
    assert traces_url("http://host:4318") == traces_url("http://host:4318/") == "http://host:4318/v1/traces"
    assert traces_url("https://host/otlp/v1/traces") == "https://host/otlp/v1/traces"
