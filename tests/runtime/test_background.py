import threading
from collections.abc import Callable

import pytest

from runtime.background import NUM_THREADS, BackgroundCalls, NeverBegunError

TIMEOUT_S = 90.0


def wait_for_all(calls: BackgroundCalls[int, str], woken: threading.Event) -> dict[int, str | Exception]:
    done: dict[int, str | Exception] = {}
    while len(calls):
        assert woken.wait(TIMEOUT_S)
        woken.clear()
        done.update(calls.pop_done())
    return done


def test_outcomes_come_out_and_wake_the_loop() -> None:
    woken = threading.Event()
    calls: BackgroundCalls[int, str] = BackgroundCalls(woken.set, TIMEOUT_S)
    assert calls.pop_done() == []
    threads_before = threading.active_count()
    for key in range(6):
        calls.start(key, lambda key=key: str(10 // (key - 3)))
    done = wait_for_all(calls, woken)
    assert {key: outcome for key, outcome in done.items() if key != 3} == {0: "-4", 1: "-5", 2: "-10", 4: "10", 5: "5"}
    assert isinstance(done[3], ZeroDivisionError)
    assert threading.active_count() - threads_before <= NUM_THREADS


def test_a_call_that_does_not_end_is_provided_up_and_the_others_continue() -> None:
    woken, release = threading.Event(), threading.Event()
    calls: BackgroundCalls[int, str] = BackgroundCalls(woken.set, 0.2)

    def hang() -> str:
        release.wait(5 * TIMEOUT_S)
        return "late"

    calls.start(1, hang)
    done: list[tuple[int, str | Exception]] = []
    while not done:
        done = calls.pop_done()
    ((key, outcome),) = done
    assert key == 1
    assert isinstance(outcome, TimeoutError)
    calls.timeout_s = TIMEOUT_S
    calls.start(2, lambda: "quick")
    assert wait_for_all(calls, woken) == {2: "quick"}
    release.set()
    assert calls.pop_done() == []


def test_a_call_that_waited_too_long_for_a_thread_is_not_made() -> None:
    woken, release = threading.Event(), threading.Event()
    made: list[int] = []
    calls: BackgroundCalls[int, str] = BackgroundCalls(woken.set, 0.2)

    def record(key: int) -> str:
        made.append(key)
        return "made"

    for key in range(NUM_THREADS):
        calls.start(key, lambda: str(release.wait(TIMEOUT_S)))
    calls.start(9, lambda: record(9))
    outcomes: dict[int, str | Exception] = {}
    while len(calls):
        outcomes.update(calls.pop_done())
    assert all(isinstance(outcome, TimeoutError) for outcome in outcomes.values())
    assert [key for key, outcome in outcomes.items() if isinstance(outcome, NeverBegunError)] == [9]
    release.set()
    calls.timeout_s = TIMEOUT_S
    calls.start(10, lambda: record(10))
    assert wait_for_all(calls, woken) == {10: "made"}
    assert made == [10]


def test_time_spent_waiting_is_not_that_of_the_call() -> None:
    woken, release = threading.Event(), threading.Event()
    calls: BackgroundCalls[int, str] = BackgroundCalls(woken.set, TIMEOUT_S, num_threads=1)
    calls.start(1, lambda: str(release.wait(TIMEOUT_S)))
    calls.start(2, lambda: str(release.wait(TIMEOUT_S)))
    (first, second) = calls._open
    asked_until_s = second.deadline_s
    release.set()
    assert wait_for_all(calls, woken) == {1: "True", 2: "True"}
    assert second.deadline_s > asked_until_s
    assert first.has_begun


@pytest.mark.parametrize("depth", [50_000])
def test_a_call_may_go_deep(depth: int) -> None:
    """Recurses like a native parser on nested input, which would overflow a stack of the usual size."""
    import sys

    woken = threading.Event()
    calls: BackgroundCalls[int, str] = BackgroundCalls(woken.set, TIMEOUT_S)

    def descend(left: int) -> int:
        return left and descend(left - 1)

    def go_deep(function: Callable[[int], int] = descend) -> str:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + 1_000)
        try:
            return str(function(depth))
        finally:
            sys.setrecursionlimit(before)

    calls.start(1, go_deep)
    assert wait_for_all(calls, woken) == {1: "0"}
