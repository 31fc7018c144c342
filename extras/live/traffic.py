"""How busy processes and edges are, from what changes between two looks: messages a second, and the share of a core."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from frontend.metrics.process_collector import find_cost
from messages.control.processes import ProcessStatus, kind_of

MIN_SPAN_NS = 500_000_000
"""A busy process beats at each step: rates over less than this say little."""

COST_SPAN_S = 1.0


class _EdgeState(NamedTuple):
    """The last count of one edge in a beat, and the rate up to it."""

    sender_id: int
    num_frames: int
    beat_ns: int
    rate: float


class EdgeRates:
    """Messages a second on each edge (`scheduler:detokenizer`), from the counts in the processes' beats."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _EdgeState] = {}

    def update(self, statuses: Sequence[ProcessStatus]) -> dict[str, float]:
        """Returns the rates as of the latest beats; the workers of a kind are added up."""
        seen: dict[tuple[str, str], _EdgeState] = {}
        rates: dict[str, float] = {}
        for status in statuses:
            for receiver, (sender_id, num_frames) in status.sent.items():
                key = status.name, receiver
                sent = seen[key] = _next(self._seen.get(key), sender_id, num_frames, status.beat_ns)
                edge = f"{kind_of(status.name)}:{kind_of(receiver)}"
                rates[edge] = round(rates.get(edge, 0.0) + (sent.rate if status.is_serving else 0.0), 1)
        self._seen = seen
        return rates


def _next(before: _EdgeState | None, sender_id: int, num_frames: int, beat_ns: int) -> _EdgeState:
    if before is None or before.sender_id != sender_id:
        return _EdgeState(sender_id, num_frames, beat_ns, 0.0)
    span_ns = beat_ns - before.beat_ns
    if span_ns < MIN_SPAN_NS:
        return before
    return _EdgeState(sender_id, num_frames, beat_ns, (num_frames - before.num_frames) / span_ns * 1e9)


class Cost(NamedTuple):
    """The share of one core in percent, unknown at first, and resident bytes."""

    cpu_percent: float | None
    rss_bytes: int | None


UNKNOWN_COST = Cost(None, None)


class ProcessCosts:
    """The CPU and memory of processes, measured at most once a second."""

    def __init__(self) -> None:
        self._measured_s = 0.0
        self._cpu_s: dict[int, float] = {}
        self._costs: dict[int, Cost] = {}

    def update(self, statuses: Sequence[ProcessStatus]) -> dict[int, Cost]:
        """Returns the costs by pid; those that cannot be looked at are missing."""
        now_s = time.monotonic()
        span_s = now_s - self._measured_s
        if span_s >= COST_SPAN_S:
            found = {status.pid: cost for status in statuses if (cost := find_cost(status.pid)) is not None}
            self._costs = {
                pid: Cost(_percent(self._cpu_s.get(pid), cost.cpu_s, span_s), cost.resident_bytes)
                for pid, cost in found.items()
            }
            self._cpu_s = {pid: cost.cpu_s for pid, cost in found.items()}
            self._measured_s = now_s
        return self._costs


def _percent(before_s: float | None, now_s: float, span_s: float) -> float | None:
    return None if before_s is None else round(100 * (now_s - before_s) / span_s, 1)
