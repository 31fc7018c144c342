"""A request is traced once, when its response is over and all its choices have ended; and only where it is wanted."""

import sys
from typing import Any

import pytest

from extras.tracing.config import TracingConfig
from extras.tracing.finished import FinishedRequest, FinishedRequests
from extras.tracing.part import open_span_export
from frontend.requests.generation import Generation
from frontend.requests.timelines import Timelines
from frontend.requests.trace import RequestTrace
from messages.errors import BootError
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import final, make_config

HEADERS = [(b"traceparent", b"00-a-b-01"), (b"authorization", b"Bearer secret"), (b"x-request-id", b"abc")]


class Run:
    def __init__(self, path: str = "/generate", method: str = "POST", num_choices: int = 1):
        self.handed_on: list[FinishedRequest] = []
        self.finished = FinishedRequests(self.handed_on.append)
        self.timelines = Timelines({}.get, on_end=self.finished.record_end)
        self.trace = RequestTrace({"method": method, "path": path, "headers": HEADERS})
        self.trace.status = 200
        for index in range(num_choices):
            params = SamplingParams(8, temperature=0.5, top_k=3)
            message = TokenizeMsg(7 + index, 0, "a secret prompt", b"", params, Stamps(self.trace.received_ns))
            generation = Generation(message, "abc", index=index)
            self.trace.generations.append(generation)
            self.timelines.open(generation, path)

    def end(self, index: int) -> None:
        generation = self.trace.generations[index]
        generation.finish(final(generation.message, finish_reason="abort"))
        self.timelines.close(generation)


def test_a_request_whose_choices_have_ended_is_handed_on_with_its_response():
    run = Run(num_choices=2)
    run.end(0)
    run.end(1)
    assert run.handed_on == []
    run.finished.record_response(run.trace)
    (request,) = run.handed_on
    assert (request.status, request.request_id, len(request.choices)) == (200, "abc", 2)
    assert request.parent == {"traceparent": "00-a-b-01"}
    assert request.ended_ns >= max(choice.timeline.end_ns for choice in request.choices)
    assert request.choices[0].parameters["gen_ai.request.top_k"] == 3
    assert len(run.finished) == 0


def test_after_a_client_has_left_it_is_handed_on_with_the_last_end():
    run = Run(num_choices=3)
    run.end(1)
    run.finished.record_response(run.trace)
    run.end(2)
    assert run.handed_on == []
    assert len(run.finished) == 1
    run.end(0)
    (request,) = run.handed_on
    assert request.ended_ns >= request.choices[0].timeline.end_ns
    assert len(run.finished) == 0


def test_a_request_that_was_refused_is_handed_on_without_a_choice():
    run = Run(num_choices=0)
    run.trace.status = 503
    run.finished.record_response(run.trace)
    assert [(request.status, request.choices, request.num_spans) for request in run.handed_on] == [(503, (), 1)]


@pytest.mark.parametrize(("path", "method"), [("/health", "GET"), ("/tokenize", "POST"), ("/generate", "GET")])
def test_what_requests_no_answer_is_not_traced(path: str, method: str):
    run = Run(path, method, num_choices=0)
    run.finished.record_response(run.trace)
    assert run.handed_on == []


def test_without_the_flag_the_library_is_not_imported_and_without_the_library_the_flag_reports_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    def forbidden(name: str) -> Any:
        monkeypatch.setitem(sys.modules, name, None)

    monkeypatch.delitem(sys.modules, "extras.tracing.export", raising=False)
    forbidden("opentelemetry.sdk.trace")
    forbidden("opentelemetry.sdk.resources")
    forbidden("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    assert open_span_export(make_config()) is None
    with pytest.raises(BootError, match=r" -m pip install -e '/.*\[otlp\]'$"):
        open_span_export(TracingConfig(otlp_endpoint="http://localhost:4318").put_into(make_config()))
