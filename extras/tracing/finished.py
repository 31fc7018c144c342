"""Which HTTP requests have ended, whole, with what a trace shows of them."""

import time
from collections.abc import Callable
from typing import NamedTuple

from frontend.requests.generation import Generation
from frontend.requests.timeline import Timeline
from frontend.requests.trace import RequestTrace

OPERATIONS = {
    **dict.fromkeys(("/generate", "/v1/completions"), "text_completion"),
    **dict.fromkeys(("/v1/chat/completions", "/v1/responses", "/v1/messages"), "chat"),
}
"""The endpoints whose requests are traced, with their `gen_ai.operation.name`."""

PARAMETERS = ("max_tokens", "temperature", "top_p", "seed")
OPTIONAL_PARAMETERS = ("top_k", "frequency_penalty", "presence_penalty")
"""Attributes of a request; the optional ones if they are not 0."""

TRACE_HEADERS = (b"traceparent", b"tracestate")

Value = str | int | float | list[str]


class Choice(NamedTuple):
    """One choice, which has ended. It keeps neither prompt nor output."""

    timeline: Timeline
    first_token_ns: int
    """0 if there was none."""
    parameters: dict[str, Value]
    """Attributes."""


class FinishedRequest(NamedTuple):
    """Times are of `time.monotonic_ns()`, which `unix_offset_ns` makes times since 1970."""

    method: str
    path: str
    request_id: str
    status: int
    received_ns: int
    ended_ns: int
    unix_offset_ns: int
    parent: dict[str, str]
    """W3C headers by name, as the client sent them."""
    choices: tuple[Choice, ...]

    @property
    def num_spans(self) -> int:
        stages = sum(len(choice.timeline.spans(self.ended_ns)) for choice in self.choices)
        return 1 + stages + (len(self.choices) if len(self.choices) > 1 else 0)


class FinishedRequests:
    """Gives each request for an answer to `hand_on`, once: when its response is over and all its choices have ended.

    After a client has left, the ends of its choices come later than that of the response.
    """

    def __init__(self, hand_on: Callable[[FinishedRequest], None]):
        self._hand_on = hand_on
        self._unfinished: dict[int, tuple[RequestTrace, int]] = {}
        """By uid of a choice that has not ended: whose it is, and when the response was over."""

    def __len__(self) -> int:
        return len(self._unfinished)

    def record_response(self, trace: RequestTrace) -> None:
        """The response of an HTTP request is over, well or not."""
        if trace.path in OPERATIONS and trace.method == "POST":
            self._look(trace, time.monotonic_ns())

    def record_end(self, timeline: Timeline) -> None:
        """A choice has ended, and its client receives no more of it."""
        if timeline.uid in self._unfinished:
            self._look(*self._unfinished.pop(timeline.uid))

    def _look(self, trace: RequestTrace, response_ended_ns: int) -> None:
        for generation in trace.generations:
            if generation.timeline.outcome is None:
                self._unfinished[generation.uid] = trace, response_ended_ns
                return
        self._hand_on(_finish(trace, response_ended_ns))


def _finish(trace: RequestTrace, response_ended_ns: int) -> FinishedRequest:
    return FinishedRequest(
        trace.method,
        trace.path,
        trace.request_id,
        trace.shown_status,
        trace.received_ns,
        max([response_ended_ns, *(generation.timeline.end_ns for generation in trace.generations)]),
        time.time_ns() - time.monotonic_ns(),
        {name.decode(): value.decode("latin-1") for name, value in trace.headers if name in TRACE_HEADERS},
        tuple(_choice(generation) for generation in trace.generations),
    )


def _choice(generation: Generation) -> Choice:
    params = generation.message.sampling_params
    values = {name: getattr(params, name) for name in (*PARAMETERS, *OPTIONAL_PARAMETERS)}
    shown = {f"gen_ai.request.{name}": value for name, value in values.items() if name in PARAMETERS or value}
    return Choice(generation.timeline, generation.first_token_ns, shown)
