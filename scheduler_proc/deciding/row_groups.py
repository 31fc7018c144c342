"""The rows in DECODE of the next step of a pipeline, whose stages compute as many steps at once.

A row is in one step at a time, as the next one needs its token. If one step had all rows, the stages would take turns.
So each step has its part of the rows: no more than one in `num_stages` of all, and no more than the free rows divided
by the steps that may still be launched. New rows, and rows of a group that has become too large, thereby join the
smallest group, and no record of groups is needed. Rows take turns in their order, so that none is left out for long.
"""

from collections.abc import Collection, Sequence
from itertools import chain

from scheduler_proc.deciding.in_flight import StepInFlight
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.rows.decode_rows import DecodeRows


class RowGroups:
    """Chooses the rows of each step, `num_stages` of which may be in flight."""

    def __init__(self, num_stages: int):
        self._num_stages = num_stages
        self._last: Req | None = None
        """The row of the previous step whose turn was last."""

    def next_group(self, decode: DecodeRows, in_flight: Sequence[StepInFlight], starved: Collection[int]) -> DecodeRows:
        """Returns the rows of `decode` for the next step: `decode` itself if they are all.

        `starved` are the uids of rows that no step has.
        """
        reqs, busy = decode.reqs, {req for step in in_flight for req in step.decoding()}
        start = reqs.index(self._last) + 1 if self._last in reqs else 0
        turns = chain(range(start, len(reqs)), range(start))
        free = [row for row in turns if reqs[row] not in busy and reqs[row].uid not in starved]
        num_left = self._num_stages - len(in_flight)
        chosen = free[: min(-(-len(free) // num_left), -(-len(reqs) // self._num_stages))]
        if chosen:
            self._last = reqs[chosen[-1]]
        if len(chosen) == len(reqs):
            return decode
        kept = set(chosen)
        return decode.kept([row in kept for row in range(len(reqs))])
