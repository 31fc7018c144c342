"""Runs planned steps: one after another or, where the runner can, the next before the result of the last is there."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.pages.page_journal import PageMemory
from scheduler_proc.deciding.pages.page_tiers import PageStore
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.step_times import StepTimes

log = logging.getLogger("sluice.scheduler")


class Launched(Protocol):
    """A step that has been started."""

    @property
    def has_ended(self) -> bool:
        """Tells whether its result is known to be there."""
        ...

    def result(self) -> ForwardOutput:
        """Waits until the step has ended; called once, in the order of the launches. Raises where the step failed."""
        ...


class TierStore(PageStore, Protocol):
    """A `PageStore` with threads. `wake` is called, in one of them, when pages have come."""

    wake: Callable[[], None]

    def close(self) -> None:
        """Ends the threads; what waits to be written is dropped."""
        ...


class Runner(Protocol):
    """The computing half as the loop sees it.

    `max_num_batched_tokens`: the flag, or its default on the device. `can_overlap`: a second step may be launched
    before the result of the first is requested, and it may refer to tokens of the first
    (`Batch.future_token_indices`). `can_plan_ahead`: it may be planned before then and launched right after, with the
    same kind of references. `draft_runner` runs the draft model, on pages with the same numbers. `page_memory` is the
    memory of its pages, if it outlives the process, and `page_store` keeps pages that are evicted, if there is one.
    `degraded` reports to operators what is missing or slower than it should be; empty if nothing is. `placement`
    reports the device and formats of the model.
    """

    num_pages: int
    max_num_batched_tokens: int
    can_overlap: bool
    can_plan_ahead: bool
    degraded: str
    placement: dict[str, str]

    @property
    def draft_runner(self) -> "Runner | None": ...

    @property
    def page_memory(self) -> PageMemory | None: ...

    @property
    def page_store(self) -> TierStore | None: ...

    def launch(self, batch: Batch) -> Launched:
        """Starts a step. Steps run in the order of their launches; K and V of one are in the cache for the next.

        Raises where nothing of the step was started; those before it go on.
        """
        ...


Launch = Callable[[Batch], Launched]


class Running(NamedTuple):
    """A step between its launch and its result."""

    batch: Batch
    launched: Launched
    start_s: float


Ended = tuple[Running, ForwardOutput]


class Stepper:
    """Gives the scheduler the results of its steps, in order.

    With `can_overlap` they come one step later than it plans them. With `can_plan_ahead`, so do those of steps that
    run while the host does something else; where there are `has_news` by their end, the plan behind them is dropped, so
    that what has come is not a step late.
    `launch` and `result` are the two halves of a step as a profile shows them. `clock` tells seconds, `cpu_clock` those
    of this thread: without overlap the thread computes, and what other programs take of its time costs no step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        times: StepTimes,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        has_news: Callable[[], bool] = lambda: False,
    ):
        self.launch: Launch = runner.launch
        self._clock = clock
        self._scheduler = scheduler
        self._can_overlap = runner.can_overlap
        self._can_plan_ahead = runner.can_plan_ahead
        self._has_news = has_news
        self._times = times
        self._running: deque[Running] = deque()
        self._last_end_s = 0.0
        self._cpu_clock = cpu_clock
        self._last_cpu_s = cpu_clock()

    @property
    def has_step(self) -> bool:
        """Tells whether a step runs whose result the scheduler has not got."""
        return bool(self._running)

    def step(self, batch: Batch | None, start_s: float) -> None:
        """Launches the step, if there is one, and commits the one before it; without overlap this one at once.

        `start_s` is when its plan was begun. Where a step fails, no matter at which of the two, all that run are
        forgotten, and then one is planned and run with no other beside it, so that its rows can be run apart.
        """
        if not self._can_overlap and not self._can_plan_ahead:
            assert batch is not None
            self._run_alone(batch, start_s)
            return
        try:
            ended = self._launch_and_end(batch, start_s) if self._can_overlap else self._end_and_launch(batch, start_s)
        except Exception:
            log.warning("a step failed, planning it again with no other beside it", exc_info=True)
            self._forget_all()
            batch = self._scheduler.schedule()
            if batch is not None:
                self._run_alone(batch, self._clock())
            return
        if ended is not None:
            running, output = ended
            self._scheduler.commit(output)
            self._note_time(running.batch, running.start_s)
        if self._can_plan_ahead and self._running and not self._may_plan_behind(self._running[0]):
            self.step(None, start_s)

    def close(self) -> None:
        """Waits for what runs, and forgets it: memory that a step uses must be there until it has ended."""
        if self._running:
            self._forget_all()

    def _launch_and_end(self, batch: Batch | None, start_s: float) -> Ended | None:
        """A device runs both steps one after another."""
        if batch is not None:
            self._running.append(Running(batch, self.launch(batch), start_s))
        if len(self._running) == 1 and batch is not None:
            return None  # there is none before it
        return self._end_first()

    def _end_and_launch(self, batch: Batch | None, start_s: float) -> Ended | None:
        """This thread helps with a step when it asks for the result, and commits it while the next one runs."""
        ended = self._end_first() if self._running else None
        if batch is not None and ended is not None and self._has_news():
            self._scheduler.forget_plan()
        elif batch is not None:
            self._running.append(Running(batch, self.launch(batch), start_s))
        return ended

    def _may_plan_behind(self, running: Running) -> bool:
        return self._scheduler.may_plan_behind and not running.launched.has_ended

    def _end_first(self) -> Ended:
        first = self._running.popleft()
        return first, self.result(first)

    def result(self, running: Running) -> ForwardOutput:
        return running.launched.result()

    def _run_alone(self, batch: Batch, start_s: float) -> None:
        self._scheduler.commit(*run_step(lambda part: self.result(Running(part, self.launch(part), start_s)), batch))
        self._note_time(batch, start_s)

    def _forget_all(self) -> None:
        while self._running:
            with contextlib.suppress(Exception):  # what fails behind a failed step says nothing
                self.result(self._running.popleft())
        self._scheduler.forget_steps()

    def _note_time(self, batch: Batch, start_s: float) -> None:
        """Counts the step; as long as the one before it ran, it did not."""
        end_s = self._clock()
        seconds = end_s - max(start_s, self._last_end_s)
        self._times.add(batch, seconds)
        cpu_s = self._cpu_clock()
        self._scheduler.note_time(batch, seconds, seconds if self._can_overlap else cpu_s - self._last_cpu_s)
        self._last_end_s, self._last_cpu_s = end_s, cpu_s
