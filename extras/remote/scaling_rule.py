"""When a server gets an engine more or fewer: the rule, without the doing (decision 0074)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from messages.control.admin import ScalingCause

FULL = 0.7
"""What one engine fewer may come to hold, as a part of its rows and pages: above it there is no room for a burst."""


class ScalingLimits(NamedTuple):
    """`up_tokens`: of the prompts that wait, for each engine."""

    min_engines: int
    max_engines: int
    up_tokens: int
    up_s: float
    down_s: float


class Sample(NamedTuple):
    """What all engines, which serve, have to do. `load`: the parts of their rows or pages in use, added up."""

    at_s: float
    num_engines: int
    waiting_tokens: float
    load: float


class Decision(NamedTuple):
    """How many engines there are to be, and why."""

    num_engines: int
    cause: ScalingCause
    text: str


def decide(history: Sequence[Sample], limits: ScalingLimits) -> Decision | None:
    """Returns what is to be done now, `None` if all is well. One engine comes or goes at a time.

    `history`: the samples, about one a second, since the number of engines changed last, or an engine was away.
    What a change needs must have been so for all of its time, so that a load that comes and goes within the longer of
    both times changes nothing twice.
    """
    latest = history[-1]
    num = latest.num_engines
    if not limits.min_engines <= num <= limits.max_engines:
        wanted = max(limits.min_engines, min(num, limits.max_engines))
        return Decision(wanted, "range", f"{num} engines, {limits.min_engines} to {limits.max_engines} are wanted")

    def has_lasted(seconds: float, holds: Callable[[Sample], bool]) -> bool:
        since_s = latest.at_s - seconds
        return history[0].at_s <= since_s and all(holds(one) for one in history if one.at_s >= since_s)

    if num < limits.max_engines and has_lasted(
        limits.up_s, lambda one: one.waiting_tokens > limits.up_tokens * one.num_engines
    ):
        text = (
            f"{latest.waiting_tokens:.0f} prompt tokens wait, for {limits.up_s:g} s more than {limits.up_tokens} for "
            f"each of {num}"
        )
        return Decision(num + 1, "waiting", text)
    if num > limits.min_engines and has_lasted(
        limits.down_s, lambda one: not one.waiting_tokens and one.load <= FULL * (one.num_engines - 1)
    ):
        text = f"for {limits.down_s:g} s nothing has waited, and {num - 1} would be {latest.load / (num - 1):.0%} full"
        return Decision(num - 1, "idle", text)
    return None
