import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from runtime import background
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


def test_a_call_that_waited_too_long_for_a_thread_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    woken, release, begun = threading.Event(), threading.Event(), threading.Barrier(NUM_THREADS + 1)
    made: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(background, "time", clock)
    calls: BackgroundCalls[int, str] = BackgroundCalls(woken.set, 0.2)

    def hang() -> str:
        begun.wait(TIMEOUT_S)
        return str(release.wait(TIMEOUT_S))

    def record(key: int) -> str:
        made.append(key)
        return "made"

    for key in range(NUM_THREADS):
        calls.start(key, hang)
    begun.wait(TIMEOUT_S)
    calls.start(9, lambda: record(9))
    clock.monotonic = lambda: 0.2
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


def test_preparing_counts_for_no_call_whenever_the_main_loop_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks each time that the thread reads the clock."""
    reads, has_looked = threading.Event(), threading.Event()
    main, now_s = threading.current_thread(), 0.0

    def monotonic() -> float:
        if threading.current_thread() is not main:
            reads.set()
            has_looked.wait(0.2)  # no longer: the thread may hold the lock for which the main loop waits
            has_looked.clear()
        return now_s

    def prepare() -> None:
        nonlocal now_s
        now_s += 2 * TIMEOUT_S

    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=monotonic))
    calls: BackgroundCalls[int, str] = BackgroundCalls(lambda: None, TIMEOUT_S, num_threads=1, prepare=prepare)
    calls.start(1, lambda: "made")
    while not (done := calls.pop_done()):
        has_looked.set()
        reads.wait(0.05)
        reads.clear()
    assert done == [(1, "made")]


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
