"""The capacity of a setting: the requests per second at which the p99 of the time to first token reaches a limit."""

from collections.abc import Callable

import msgspec

from messages.errors import UsageError

MAX_DOUBLINGS = 10
NUM_BISECTIONS = 5


class Capacity(msgspec.Struct, frozen=True):
    """`curve` holds (requests per second, p99 of TTFT in ms), by rate. `requests_per_s` is the best within the limit.

    It is 0 if even the lowest rate tried exceeds the limit. With `is_open` the highest rate tried was still within it.
    """

    requests_per_s: float
    curve: tuple[tuple[float, float], ...]
    is_open: bool = False


def find_capacity(p99_ttft_ms: Callable[[float], float], rate: float, limit_ms: float) -> Capacity:
    """Returns the capacity; `p99_ttft_ms` returns that time for a rate of requests, `rate` is the first rate tried.

    The rate is doubled or halved until the limit lies between two, and then bisected.
    """
    if rate <= 0:
        raise UsageError("--ttft-slo needs requests that arrive over some time: all of these arrive at once")
    curve: dict[float, float] = {}

    def narrow(inside: float, outside: float, at: float) -> tuple[float, float]:
        """Returns the largest rate within the limit and the least beyond it, as `at` shows them; 0 if unknown."""
        curve[at] = p99_ttft_ms(at)
        return (at, outside) if curve[at] <= limit_ms else (inside, at)

    inside, outside = narrow(0.0, 0.0, rate)
    factor = 2.0 if inside else 0.5
    for _ in range(MAX_DOUBLINGS):
        rate *= factor
        inside, outside = narrow(inside, outside, rate)
        if inside and outside:
            break
    for _ in range(NUM_BISECTIONS if inside and outside else 0):
        inside, outside = narrow(inside, outside, (inside + outside) / 2)
    return Capacity(inside, tuple(sorted(curve.items())), is_open=not outside)
