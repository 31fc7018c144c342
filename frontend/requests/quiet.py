"""Open requests without a recent token: the frontend's evidence of a stall, which it reports to the launcher."""

from collections.abc import Iterable, Mapping

from frontend.requests.generation import Generation
from frontend.requests.step_log import StepLog
from messages.control.processes import QuietRequest

MAX_QUIET = 8
"""Enough to identify a stall; the launcher counts processes, not requests."""


def find_quiet(
    generations: Iterable[Generation], steps: Mapping[int, StepLog], now_ns: int, quiet_s: float
) -> tuple[QuietRequest, ...]:
    """Returns the first requests without a token for `quiet_s`, decoding ones before others.

    `steps` are by engine. `now_ns` is `time.monotonic_ns()`.
    """
    before_ns = now_ns - round(quiet_s * 1e9)
    decoding: list[QuietRequest] = []
    others: list[QuietRequest] = []
    for generation in generations:
        timeline = generation.timeline
        last_ns = generation.last_token_ns or timeline.received_ns
        if last_ns > before_ns:
            continue
        name = generation.uid, generation.request_id, timeline.stage
        begin_ns = timeline.stage_begin_ns
        if timeline.stage == "decode" and not timeline.is_full and begin_ns <= before_ns:
            last_ns = max(begin_ns, last_ns)
            log = steps[generation.engine]
            interval_ns = log.median_interval_ns(begin_ns, last_ns)
            decoding.append(QuietRequest(*name, last_ns, interval_ns, log.count_after(last_ns), generation.engine))
            if len(decoding) >= MAX_QUIET:
                break
        elif len(others) < MAX_QUIET:
            others.append(QuietRequest(*name, last_ns))
    return tuple((decoding + others)[:MAX_QUIET])
