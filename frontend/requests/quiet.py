"""Which open requests have brought nothing for long: what a frontend knows of a stall, told to the launcher."""

from collections.abc import Iterable

from frontend.requests.generation import Generation
from frontend.requests.step_log import StepLog
from messages.control import QuietRequest

MAX_QUIET = 8
"""Enough to name what stalls; the launcher counts processes, not requests."""


def find_quiet(
    generations: Iterable[Generation], steps: StepLog, now_ns: int, quiet_s: float
) -> tuple[QuietRequest, ...]:
    """Returns the first of those of which nothing has been heard for `quiet_s`, those that decode before the others.

    `now_ns` is `time.monotonic_ns()`. What is on hold or sent again after a process died is not among them: it waits
    for that process.
    """
    before_ns = now_ns - round(quiet_s * 1e9)
    decoding: list[QuietRequest] = []
    others: list[QuietRequest] = []
    for generation in generations:
        timeline = generation.timeline
        stage, since_ns = timeline.stage, timeline.stage_begin_ns
        if stage in ("hold", "restart") or since_ns > before_ns or generation.last_token_ns > before_ns:
            continue
        name = generation.uid, generation.request_id, stage
        if stage == "decode" and not timeline.is_full:
            last_ns = max(since_ns, generation.last_token_ns)
            interval_ns = steps.median_interval_ns(since_ns, last_ns)
            decoding.append(QuietRequest(*name, last_ns, interval_ns, steps.count_after(last_ns)))
            if len(decoding) >= MAX_QUIET:
                break
        elif len(others) < MAX_QUIET:
            others.append(QuietRequest(*name, since_ns))
    return tuple((decoding + others)[:MAX_QUIET])
