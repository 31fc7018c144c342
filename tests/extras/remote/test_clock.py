import random

from extras.remote.clock import NUM_QUESTIONS, ClockComparison
from extras.remote.messages import ClockAnswer

MS = 1_000_000


def compare(ahead_ns: int, ways_ns: list[tuple[int, int]]) -> int:
    """Returns what is found where the head's clock is so far ahead, and the ways there and back take so long."""
    comparison, now_ns = ClockComparison(), 10**12
    for there_ns, back_ns in ways_ns:
        assert not comparison.is_over
        answer = ClockAnswer(now_ns, now_ns + there_ns + ahead_ns)
        now_ns += there_ns + back_ns
        comparison.record(answer, now_ns)
    assert comparison.is_over
    return comparison.ahead_ns


def test_the_shortest_trip_decides_however_uneven_the_others_are():
    rng = random.Random(3)
    for ahead_ns in (-(10**15), 10**15):
        ways = [(rng.randrange(MS, 900 * MS), rng.randrange(MS, 900 * MS)) for _ in range(NUM_QUESTIONS - 1)]
        ways.insert(3, (MS // 10, MS // 5))
        assert abs(compare(ahead_ns, ways) - ahead_ns) <= 15 * MS // 100


def test_one_clock_is_notified_as_one():
    assert compare(0, [(3 * MS, MS)] * NUM_QUESTIONS) == 0
