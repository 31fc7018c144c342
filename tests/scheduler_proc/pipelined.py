"""A pipeline whose stages take time, and a bench whose scheduler keeps a step in each of them."""

from collections.abc import Callable
from typing import Any

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.stepper import Stepper
from tests.scheduler_proc.overlapped import STEP_S, TOKEN_S, LaunchedStep, OverlappedBench, OverlappedRunner


class PipelinedRunner(OverlappedRunner):
    """Each stage computes the steps in their order, in `stage_s` of the step, and passes them on.

    Pages are written when the result is requested, as in the last stage, or with `is_early` at the launch, as in the
    first one.
    """

    can_overlap = False

    def __init__(
        self, runner: Any, num_stages: int, attempt_of: Callable[[int], int | None], *, is_early: bool = False
    ) -> None:
        super().__init__(runner, attempt_of)
        self.num_stages = self.max_waiting = num_stages
        self.max_launched = 0
        self.is_early = is_early
        self.stage_s: Callable[[Batch], float] = lambda batch: (STEP_S + TOKEN_S * batch.num_tokens) / num_stages
        self._free_s = [0.0] * num_stages
        self._compute = self._run
        self._computed: dict[int, ForwardOutput | Exception] = {}
        if is_early:
            self._run = self._pop_computed

    def launch(self, batch: Batch) -> LaunchedStep:
        assert not batch.future_token_indices, "a step waits for the token of another one"
        launched = super().launch(batch)
        self.max_launched = max(self.max_launched, len(self._waiting))
        if self.is_early:
            try:
                self._computed[batch.step_id] = self._compute(batch)
            except ArithmeticError as error:
                self._computed[batch.step_id] = error
        return launched

    def _pop_computed(self, batch: Batch) -> ForwardOutput:
        output = self._computed.pop(batch.step_id)
        if isinstance(output, Exception):
            raise output
        return output

    def has_ended(self, launched: LaunchedStep) -> bool:
        return launched.end_s <= self.now_s

    def find_end_s(self, batch: Batch) -> float:
        end_s, stage_s = self.now_s, self.stage_s(batch)
        for stage, free_s in enumerate(self._free_s):
            end_s = self._free_s[stage] = max(end_s, free_s) + stage_s
        return end_s


class PipelinedBench(OverlappedBench):
    """An `OverlappedBench` on a pipeline. With `has_groups` false the scheduler takes it for one device."""

    device: PipelinedRunner

    def __init__(
        self, num_stages: int = 2, *, is_early: bool = False, has_groups: bool = True, **settings: Any
    ) -> None:
        self._num_stages, self._is_early = num_stages, is_early
        super().__init__(num_stages=num_stages if has_groups else 1, **settings)

    def make_device(self) -> PipelinedRunner:
        return PipelinedRunner(self.runner, self._num_stages, self._attempt_of, is_early=self._is_early)

    def make_stepper(self) -> Stepper:
        return Stepper(self.scheduler, self.device, self.times, self.clock)
