"""The rule by which a server gets one engine more or fewer, without the execution (decision 0074)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from messages.control.admin import ScalingCause

FULL = 0.7
"""The load of the remaining engines, as a fraction of their rows and pages, that leaves room for a burst."""


class ScalingLimits(NamedTuple):
    """`up_tokens`: waiting prompt tokens per engine."""

    min_engines: int
    max_engines: int
    up_tokens: int
    up_s: float
    down_s: float


class Sample(NamedTuple):
    """The work of all serving engines. `load` is the sum of the fractions of their rows or pages in use."""

    at_s: float
    num_engines: int
    waiting_tokens: float
    load: float


class Decision(NamedTuple):
    """The wanted number of engines, with the reason."""

    num_engines: int
    cause: ScalingCause
    text: str


def decide(history: Sequence[Sample], limits: ScalingLimits) -> Decision | None:
    """Returns the change to make now, `None` if there is none. Only one engine comes or goes at a time.

    `history` has about one sample per second since the last change of the number of engines, or since an engine was
    away. The reason for a change must have held during the whole time of its kind. So a load that alternates within the
    longer of both times never causes two changes.
    """
    latest = history[-1]
    num = latest.num_engines
    if not limits.min_engines <= num <= limits.max_engines:
        requested = max(limits.min_engines, min(num, limits.max_engines))
        return Decision(requested, "range", f"{num} engines, {limits.min_engines} to {limits.max_engines} are wanted")

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
