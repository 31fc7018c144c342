"""Runs slow calls in threads next to a main loop, each with a deadline."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

K = TypeVar("K")
R = TypeVar("R")

NUM_THREADS = 2
"""The default number of threads."""

STACK_BYTES = 256 << 20
"""Address space, because a parser's recursion may be as deep as its input. Untouched pages use no memory."""

LOWEST_PRIORITY = 19


def lower_priority(priority: int = LOWEST_PRIORITY) -> None:
    """Gives the calling thread this lower priority for good, on systems where threads have priorities."""
    lower_priority_of([threading.get_native_id()], priority)


def native_threads() -> set[int]:
    """Returns the native ids of this process's threads, also of those that libraries have started; only on Linux."""
    try:
        return {int(path.name) for path in Path("/proc/self/task").iterdir()}
    except OSError:
        return set()


def lower_priority_of(threads: Iterable[int], priority: int) -> None:
    """Gives these threads, by native id, this lower priority for good. Ended threads are skipped."""
    for thread in threads:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, priority)


def call_at_low_priority(call: Callable[[], R]) -> R:
    """Runs `call` in a low-priority thread and returns its result. The calling thread waits and keeps its priority."""
    with ThreadPoolExecutor(1, initializer=lower_priority) as thread:
        return thread.submit(call).result()


class NeverBegunError(TimeoutError):
    """A call reached its deadline while it was waiting for others."""


@dataclass(slots=True, eq=False)
class _Job(Generic[K, R]):
    key: K
    call: Callable[[], R]
    deadline_s: float
    has_begun: bool = False
    outcomes: list[R | Exception] = field(default_factory=list[R | Exception])
    """Empty until the call has ended."""


@dataclass(eq=False)
class BackgroundCalls(Generic[K, R]):
    """Runs calls in order in at most `num_threads` threads. The thread calls `wake` when a call has ended.

    A call fails if it has not begun `timeout_s` after `start`, or has not ended `timeout_s` after it began. Its thread
    cannot be stopped, so every call must end eventually. `prepare` runs before each call and counts for none of them:
    meanwhile no call reaches its deadline. It must end in bounded time; what it raises is the outcome of its call.
    """

    _wake: Callable[[], None]
    timeout_s: float
    num_threads: int = NUM_THREADS
    prepare: Callable[[], object] | None = None
    _num_preparing: int = 0
    _open: list[_Job[K, R]] = field(default_factory=list[_Job[K, R]])
    _waiting: deque[_Job[K, R]] = field(default_factory=deque[_Job[K, R]])
    _has_job: threading.Condition = field(default_factory=threading.Condition)
    _num_threads: int = 0
    _num_idle: int = 0
    """Threads without a call."""

    def __len__(self) -> int:
        """Returns the number of calls that have not been popped."""
        return len(self._open)

    def start(self, key: K, call: Callable[[], R]) -> None:
        """Queues `call` and returns at once. `pop_done` returns its outcome."""
        job = _Job[K, R](key, call, time.monotonic() + self.timeout_s)
        self._open.append(job)
        with self._has_job:
            self._waiting.append(job)
            self._has_job.notify()
            needs_thread = self._num_idle < len(self._waiting) and self._num_threads < self.num_threads
        if needs_thread:
            self._start_thread()

    def pop_done(self) -> list[tuple[K, R | Exception]]:
        """Returns the finished calls, each with its result or exception.

        A call that missed its deadline has `TimeoutError`, or `NeverBegunError` if it did not begin. Call this at least
        once a second while there are calls, so that deadlines are enforced.
        """
        if not self._open:
            return []
        done: list[tuple[K, R | Exception]] = []
        still_open: list[_Job[K, R]] = []
        with self._has_job:
            now_s = time.monotonic()
            for job in self._open:
                if job.outcomes:
                    done.append((job.key, job.outcomes[0]))
                elif now_s >= job.deadline_s and not (self._num_preparing and not job.has_begun):
                    done.append((job.key, TimeoutError() if job.has_begun else NeverBegunError()))
                else:
                    still_open.append(job)
        self._open = still_open
        return done

    def _start_thread(self) -> None:
        self._num_threads += 1
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._run, name="background", daemon=True).start()
        finally:
            threading.stack_size(before)

    def _run(self) -> None:
        while True:
            with self._has_job:
                self._num_idle += 1
                while not self._waiting:
                    self._has_job.wait()
                self._num_idle -= 1
                job = self._waiting.popleft()
            if time.monotonic() < job.deadline_s:
                try:
                    self._begin(job)
                    job.outcomes.append(job.call())
                except BaseException as error:  # a panic in a Rust library is not an Exception
                    job.outcomes.append(error if isinstance(error, Exception) else RuntimeError(str(error)))
            self._wake()

    def _begin(self, job: _Job[K, R]) -> None:
        """Prepares the call, and gives the calls that have not begun the time that it took."""
        begun_s = time.monotonic()
        with self._has_job:
            self._num_preparing += 1
        try:
            if self.prepare is not None:
                self.prepare()
        finally:
            with self._has_job:
                now_s = time.monotonic()
                for waiting in self._waiting:
                    waiting.deadline_s += now_s - begun_s
                job.deadline_s, job.has_begun = now_s + self.timeout_s, True
                self._num_preparing -= 1
