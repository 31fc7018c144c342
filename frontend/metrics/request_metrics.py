"""Metrics of requests, counted at the end of each from its stamps and usage."""

import time
from collections import Counter
from typing import get_args

from frontend.metrics.distribution import Distribution, one_two_five
from frontend.requests.generation import Generation
from frontend.requests.timeline import Stage, Timeline
from frontend.requests.timelines import sum_stages
from messages.columns import num_int32
from messages.ring.replies import UserReply

FIRST_TOKEN_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
SPAN_BOUNDS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STAGE_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class RequestMetrics:
    """Counts since the process started. Spans are in seconds; for a continued request, those of its last attempt.

    `token_gaps_s` is updated as tokens arrive, everything else at the end of a request. A refused request counts only
    with its finish reason (`error`).
    """

    def __init__(self, max_model_len: int):
        token_bounds = one_two_five(max_model_len)
        self.token_gaps_s = Distribution(TOKEN_GAP_BOUNDS_S)
        self.first_token_s = Distribution(FIRST_TOKEN_BOUNDS_S)
        self.per_token_s = Distribution(TOKEN_GAP_BOUNDS_S)
        self.total_s = Distribution(SPAN_BOUNDS_S)
        self.queue_s = Distribution(SPAN_BOUNDS_S)
        self.prefill_s = Distribution(SPAN_BOUNDS_S)
        self.decode_s = Distribution(SPAN_BOUNDS_S)
        self.inference_s = Distribution(SPAN_BOUNDS_S)
        self.prompt_tokens = Distribution(token_bounds)
        self.output_tokens = Distribution(token_bounds)
        self.max_tokens = Distribution(token_bounds)
        self.computed_tokens = Distribution(token_bounds)
        """Prompt tokens that were not in the prefix cache."""
        self.stage_s = {stage: Distribution(STAGE_BOUNDS_S) for stage in get_args(Stage)}
        """Time per stage. A stage that a request entered several times counts once, with the sum."""
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_ended: Counter[str] = Counter()
        """By finish reason."""
        self.num_clients_gone = 0

    def record_step(self, now_ns: int, num_rows_after: dict[int, int]) -> None:
        """Counts tokens that arrived at `now_ns`, by the time of their requests' previous token (0: none)."""
        for last_ns, num_rows in num_rows_after.items():
            self.num_output_tokens += num_rows
            if last_ns:
                self.token_gaps_s.add((now_ns - last_ns) / 1e9, num_rows)

    def record_end(self, generation: Generation) -> None:
        """Counts a request that has just ended for its client."""
        final = generation.ended
        self.num_ended[final.finish_reason] += 1
        num_last = num_int32(final.token_ids)
        now_ns = time.monotonic_ns()
        if num_last:
            self.record_step(now_ns, {generation.last_token_ns: num_last})
        if final.finish_reason != "error":
            self._record_usage(generation, final)
            self._record_spans(generation, final, now_ns)

    def record_timeline(self, timeline: Timeline) -> None:
        """Counts the stages of a request whose response is over."""
        for stage, ms in sum_stages(timeline.spans(timeline.end_ns)).items():
            self.stage_s[stage].add(ms / 1000)

    def _record_usage(self, generation: Generation, final: UserReply) -> None:
        usage = final.usage
        self.prompt_tokens.add(usage.prompt_tokens)
        self.output_tokens.add(usage.completion_tokens)
        self.max_tokens.add(generation.message.sampling_params.max_tokens)
        self.computed_tokens.add(usage.prompt_tokens - usage.cached_tokens)
        self.num_cached_tokens += usage.cached_tokens

    def _record_spans(self, generation: Generation, final: UserReply, now_ns: int) -> None:
        stamps = final.stamps
        first_token_ns = generation.first_token_ns or now_ns
        self.total_s.add((now_ns - stamps.received_ns) / 1e9)
        if generation.output_ids:
            self.first_token_s.add((first_token_ns - stamps.received_ns) / 1e9)
        if len(generation.output_ids) > 1:
            self.per_token_s.add((now_ns - first_token_ns) / 1e9 / (len(generation.output_ids) - 1))
        _add_span(self.queue_s, stamps.queued_ns, stamps.first_scheduled_ns)
        _add_span(self.prefill_s, stamps.first_scheduled_ns, stamps.first_token_ns)
        _add_span(self.decode_s, stamps.first_token_ns, stamps.finished_ns)
        _add_span(self.inference_s, stamps.first_scheduled_ns, stamps.finished_ns)


def _add_span(spans_s: Distribution, began_ns: int, ended_ns: int) -> None:
    """Counts a span if both of its ends were reached."""
    if began_ns and ended_ns:
        spans_s.add((ended_ns - began_ns) / 1e9)
