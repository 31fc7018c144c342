"""Runs planned steps: one by one or, if the runner can, the next ones before the result of the last is known."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.adapter_reader import Tensors
from scheduler_proc.deciding.adapter_slots import AdapterSlots
from scheduler_proc.deciding.drafting.draft_model import run_draft_steps
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.pages.page_journal import PageMemory
from scheduler_proc.deciding.pages.page_observer import PageStore
from scheduler_proc.deciding.row_places import RowMemory
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.step_times import StepTimes

log = logging.getLogger("sluice.scheduler")


class StepFuture(Protocol):
    """The result of a launched step, which may be pending."""

    @property
    def has_ended(self) -> bool:
        """True if the result is known to be available."""
        ...

    def result(self) -> ForwardOutput:
        """Waits until the step has ended; called once, in the order of launches. Raises if the step failed."""
        ...


class Runner(Protocol):
    """The computing half as the loop sees it.

    `max_num_batched_tokens`: the flag, or its default on the device. `can_overlap`: a second step may be launched
    before the result of the first is requested, and it may refer to tokens of the first
    (`Batch.future_token_indices`). `can_plan_ahead`: it may be planned before then and launched right after, with the
    same kind of references. `num_stages`: it is a pipeline if there are several, and this number of steps may be
    launched, without such references, before the result of the first is requested. `draft_runner` runs the draft model,
    on pages with the same numbers. `page_memory` is the memory of its pages, if it outlives the process. `page_store`
    keeps evicted pages, if there is one. `windows`: the window of the layers that have window pages, and the number of
    these, if any have. `states`: the number of state slots, and of the pages between checkpoints of a long prompt, if
    layers have recurrent states. `span_rows` are the rows of spans in prompts, if it can place them. `degraded` reports
    to operators what is missing or slower than it should be; empty if nothing is. `placement` reports the device and
    formats of the model. `memory_gauges` returns the bytes that the model takes, by name.
    """

    num_pages: int
    max_num_batched_tokens: int
    can_overlap: bool
    can_plan_ahead: bool
    num_stages: int
    degraded: str
    placement: dict[str, str]

    @property
    def draft_runner(self) -> "Runner | None": ...

    @property
    def page_memory(self) -> PageMemory | None: ...

    @property
    def windows(self) -> tuple[int, int] | None: ...

    @property
    def states(self) -> tuple[int, int] | None: ...

    @property
    def page_store(self) -> PageStore | None: ...

    @property
    def span_rows(self) -> RowMemory | None: ...

    def memory_gauges(self) -> dict[str, float]: ...

    def launch(self, batch: Batch) -> StepFuture:
        """Starts a step. Steps run in the order of launches, and each finds K and V of the previous ones in the cache.

        Raises if the step could not be started; earlier steps continue.
        """
        ...


@runtime_checkable
class AdapterRunner(Runner, Protocol):
    """A runner with slots for LoRA adapters."""

    def read_adapter(self, path: str) -> Tensors:
        """Returns the checked tensors of the adapter in a directory, in any thread. Raises `AdapterError`."""
        ...

    def place_adapter(self, slot: int, adapter: Any) -> None:
        """Places these tensors in a slot, for the steps that are launched after it."""


Launch = Callable[[Batch], StepFuture]


def _place_and_launch(runner: AdapterRunner, adapters: AdapterSlots, batch: Batch) -> StepFuture:
    """Launches a step after placing the adapters that have got a slot since the last one."""
    for slot, adapter in tuple(adapters.placements.items()):
        runner.place_adapter(slot, adapter)
        del adapters.placements[slot]
    return runner.launch(batch)


class RunningStep(NamedTuple):
    """A step between its launch and its result."""

    batch: Batch
    launched: StepFuture
    start_s: float


@dataclass(eq=False)
class Stepper:
    """Runs the scheduler's steps and commits their results in order.

    With `can_overlap` a result is committed after the next step is launched. With `can_plan_ahead` the next step is
    planned while one runs; if messages have arrived by its end (`has_news`), that plan is dropped, so that new requests
    are not a step late. A pipeline gets as many steps as it has stages before the result of the first is waited for.
    `launch` and `result` are the two halves of a step in profiles. `clock` returns seconds, `cpu_clock` CPU seconds of
    this thread: without overlap this thread computes, and time taken by other programs is not counted as a step's.
    """

    _scheduler: Scheduler
    _runner: InitVar[Runner]
    _times: StepTimes
    _clock: Callable[[], float] = time.monotonic
    _cpu_clock: Callable[[], float] = time.thread_time
    has_news: Callable[[], bool] = lambda: False

    def __post_init__(self, _runner: Runner):
        self.launch: Launch = _runner.launch
        adapters = self._scheduler.cache.find_observer(AdapterSlots)
        if adapters is not None:
            assert isinstance(_runner, AdapterRunner)
            self.launch = partial(_place_and_launch, _runner, adapters)
        self._draft_runner = _runner.draft_runner
        self._can_overlap = _runner.can_overlap
        self._can_plan_ahead = _runner.can_plan_ahead
        self._num_stages = self._scheduler.num_stages
        assert self._num_stages == 1 or not (self._can_overlap or self._can_plan_ahead), "stages overlap by themselves"
        self._running: deque[RunningStep] = deque()
        self._last_end_s = 0.0
        self._last_cpu_s = self._cpu_clock()

    @property
    def has_step(self) -> bool:
        """True if a step is running whose result is not committed yet."""
        return bool(self._running)

    def plan(self) -> Batch | None:
        """Returns the next step, planned with the steps of the draft model that it needs; `None` as `schedule` does."""
        batch, proposal, runner = self._scheduler.schedule(), self._scheduler.proposal, self._draft_runner
        if proposal is None or runner is None:
            return batch
        return self._scheduler.add_drafts(run_draft_steps(proposal, lambda step: runner.launch(step).result()))

    def step(self, batch: Batch | None, start_s: float) -> None:
        """Launches the step, if there is one, and commits the one before it; without overlap this one at once.

        In a pipeline it commits the oldest one if that has ended, or if no more steps can be launched. `start_s` is
        when its plan was begun. If one of the steps fails, all are forgotten; then one step is planned and run alone,
        so that its rows can be run apart.
        """
        if not self._can_overlap and not self._can_plan_ahead and self._num_stages == 1:
            assert batch is not None
            self._run_alone(batch, start_s)
            return
        try:
            run = self._end_and_launch if self._can_plan_ahead else self._launch_and_end
            ended = run(batch, start_s)
        except Exception:
            log.warning("a step failed, planning it again alone", exc_info=True)
            self._forget_all()
            self._run_alone(self.plan(), self._clock())
            return
        if ended is not None:
            running, output = ended
            self._scheduler.commit(output)
            self._record_time(running.batch, running.start_s)
        if self._can_plan_ahead and self._running and not self._may_plan_behind(self._running[0]):
            self.step(None, start_s)

    def close(self) -> None:
        """Waits for the running steps and forgets them: their memory must stay valid until they have ended."""
        if self._running:
            self._forget_all()

    def _launch_and_end(self, batch: Batch | None, start_s: float) -> tuple[RunningStep, ForwardOutput] | None:
        """Launches a step behind the running ones on the device."""
        if batch is not None:
            self._running.append(RunningStep(batch, self.launch(batch), start_s))
            if self._has_room():
                return None
        return self._end_first()

    def _has_room(self) -> bool:
        """True if another step should be launched before the first result is waited for."""
        if self._num_stages == 1:
            return len(self._running) == 1
        return len(self._running) < self._num_stages and not self._running[0].launched.has_ended

    def _end_and_launch(self, batch: Batch | None, start_s: float) -> tuple[RunningStep, ForwardOutput] | None:
        """Waits for the running step, with which this thread helps, and launches the next one before the commit."""
        ended = self._end_first() if self._running else None
        if batch is not None and ended is not None and self.has_news():
            self._scheduler.forget_plan()
        elif batch is not None:
            self._running.append(RunningStep(batch, self.launch(batch), start_s))
        return ended

    def _may_plan_behind(self, running: RunningStep) -> bool:
        return self._scheduler.may_plan_behind and not running.launched.has_ended

    def _end_first(self) -> tuple[RunningStep, ForwardOutput]:
        first = self._running.popleft()
        return first, self.result(first)

    def result(self, running: RunningStep) -> ForwardOutput:
        return running.launched.result()

    def _run_alone(self, batch: Batch | None, start_s: float) -> None:
        """Runs and commits a step. One that fails and cannot be run in parts is forgotten, and the next one runs."""
        while batch is not None:
            try:
                output, failures = run_step(lambda part: self._run_part(part, start_s), batch)
            except Exception:
                log.warning("step %d failed, computing its states again", batch.step_id, exc_info=True)
                self._scheduler.forget_steps()
                batch = self.plan()
                continue
            self._scheduler.commit(output, failures)
            self._record_time(batch, start_s)
            return

    def _run_part(self, part: Batch, start_s: float) -> ForwardOutput:
        return self.result(RunningStep(part, self.launch(part), start_s))

    def _forget_all(self) -> None:
        while self._running:
            with contextlib.suppress(Exception):  # a failure behind a failed step is no new information
                self.result(self._running.popleft())
        self._scheduler.forget_steps()

    def _record_time(self, batch: Batch, start_s: float) -> None:
        """Records the time of a step, which begins when the previous one has ended.

        If there was none before it in a pipeline, it has also waited for the other stages.
        """
        end_s = self._clock()
        seconds = end_s - max(start_s, self._last_end_s)
        self._times.add(batch, seconds)
        cpu_s, is_pipeline = self._cpu_clock(), self._num_stages > 1
        cost_s = seconds if self._can_overlap or is_pipeline else cpu_s - self._last_cpu_s
        self._scheduler.record_time(batch, 0.0 if is_pipeline and start_s >= self._last_end_s else seconds, cost_s)
        self._last_end_s, self._last_cpu_s = end_s, cpu_s
