"""The spans of one request: its response as a whole, its choices if there are several, and each stage of them.

Attributes have the names of OpenTelemetry's semantic conventions for HTTP and generative AI, or begin with `sluice.`.
"""

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extras.tracing.finished import OPERATIONS, Choice, FinishedRequest, Value
from frontend.requests.timeline import Span as Stage
from frontend.requests.timeline import Timeline

EVENT_STAGES = frozenset({"restart", "preempted"})
"""Stages that are also events of what they interrupt."""


def make_spans(tracer: Tracer, request: FinishedRequest, model: str) -> None:
    """Makes and ends the spans of `request`: below the client's span if it names one, none if that is not sampled."""
    operation = OPERATIONS[request.path]
    root = tracer.start_span(
        f"{operation} {model}",
        TraceContextTextMapPropagator().extract(request.parent),
        SpanKind.SERVER,
        _request_attributes(request, operation, model),
        start_time=request.received_ns + request.unix_offset_ns,
    )
    if root.is_recording():
        if request.status >= 500:
            root.set_attribute("error.type", str(request.status))
            root.set_status(StatusCode.ERROR)
        context = set_span_in_context(root)
        if len(request.choices) == 1:
            _add_choice(tracer, root, context, request.choices[0], request.unix_offset_ns)
        else:
            for choice in request.choices:
                _add_choice_span(tracer, context, choice, request.unix_offset_ns)
    root.end(request.ended_ns + request.unix_offset_ns)


def _request_attributes(request: FinishedRequest, operation: str, model: str) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "http.request.method": request.method,
        "http.route": request.path,
        "url.path": request.path,
        "http.response.status_code": request.status,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sluice",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "sluice.request_id": request.request_id,
    }
    if request.choices:
        attributes |= request.choices[0].parameters
    if len(request.choices) > 1:
        attributes["gen_ai.request.choice.count"] = len(request.choices)
    return attributes


def _add_choice_span(tracer: Tracer, parent: Context, choice: Choice, offset_ns: int) -> None:
    timeline = choice.timeline
    span = tracer.start_span(f"choice {timeline.index}", parent, start_time=timeline.received_ns + offset_ns)
    _add_choice(tracer, span, set_span_in_context(span), choice, offset_ns)
    span.end(timeline.end_ns + offset_ns)


def _add_choice(tracer: Tracer, span: Span, context: Context, choice: Choice, offset_ns: int) -> None:
    """Adds a choice to `span`, and its stages as children."""
    timeline, outcome = choice.timeline, choice.timeline.outcome
    assert outcome is not None, f"uid {timeline.uid} has not ended"
    span.set_attribute("sluice.uid", timeline.uid)
    span.set_attribute("gen_ai.response.finish_reasons", [outcome.finish_reason])
    span.set_attribute("gen_ai.usage.output_tokens", outcome.num_output_tokens)
    if timeline.prompt_tokens is not None:
        span.set_attribute("gen_ai.usage.input_tokens", timeline.prompt_tokens)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", timeline.cached_tokens or 0)
    if choice.first_token_ns:
        first_token_s = (choice.first_token_ns - timeline.received_ns) / 1e9
        span.set_attribute("gen_ai.response.time_to_first_chunk", first_token_s)
    if outcome.finish_reason == "error":
        span.set_attribute("error.type", "error")
        span.set_status(StatusCode.ERROR)
    for stage in timeline.spans(timeline.end_ns):
        attempt = {"sluice.attempt": stage.attempt}
        if stage.stage in EVENT_STAGES:
            span.add_event(stage.stage, attempt, stage.begin_ns + offset_ns)
        stage_span = tracer.start_span(stage.stage, context, attributes=attempt, start_time=stage.begin_ns + offset_ns)
        if stage.stage == "prefill":
            _add_chunks(stage_span, timeline, stage, offset_ns)
        stage_span.end(stage.end_ns + offset_ns)


def _add_chunks(span: Span, timeline: Timeline, stage: Stage, offset_ns: int) -> None:
    for chunk in timeline.chunks:
        if stage.begin_ns <= chunk.planned_ns < stage.end_ns:
            tokens = {"sluice.first_token": chunk.start, "sluice.end_token": chunk.end}
            span.add_event("chunk", tokens, chunk.planned_ns + offset_ns)
