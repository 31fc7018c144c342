"""The place of waiting requests in the scheduler's queue, from its latest report: no process is asked."""

import time
from collections.abc import Sequence

import msgspec

from frontend.requests.generation import Generation
from frontend.requests.timeline import WaitReport
from messages.ring.timeline import WaitingRow


class QueuePlace(msgspec.Struct, frozen=True):
    """`position` is 1 for the next request. `tokens_ahead` are those of prompts before it, cached ones included.

    An unknown number is null: the tokens for up to a second, the time until requests have left the queue.
    """

    position: int
    tokens_ahead: int | None
    expected_s: float | None
    """Seconds until it leaves the queue, at the rate of the latest admissions."""


def find_place(choices: Sequence[Generation]) -> QueuePlace | None:
    """Returns the best place of the choices of a request; `None` unless all of them wait."""
    best: tuple[WaitReport, WaitingRow] | None = None
    for generation in choices:
        report = generation.timeline.wait_report
        if report is None or not isinstance(report.row, WaitingRow):
            return None
        if best is None or report.row.num_before < best[1].num_before:
            best = report, report.row
    if best is None:
        return None
    report, row = best
    num_tokens = row.num_tokens_before
    return QueuePlace(row.num_before + 1, None if num_tokens < 0 else num_tokens, expected_s(report, row))


def expected_s(report: WaitReport, row: WaitingRow) -> float | None:
    """Returns the seconds until a request leaves the queue, at the rate of the latest admissions, `None` if unknown."""
    if not report.facts.admitted_per_s:
        return None
    age_s = max(0, time.monotonic_ns() - report.planned_ns) / 1e9
    return round(max(0.0, (row.num_before + 1) / report.facts.admitted_per_s - age_s), 3)
