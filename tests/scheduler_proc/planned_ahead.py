"""A runner that has the next step planned while one runs, but takes it only afterwards, and a bench that does so."""

import random
from typing import Any

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.computing.step.packing import only_samples
from scheduler_proc.computing.step.rewritten_batches import with_known_tokens
from scheduler_proc.stepper import Stepper
from tests.scheduler_proc.overlapped import LaunchedStep, OverlappedBench, OverlappedRunner


class AheadRunner(OverlappedRunner):
    """One step at a time; those with anything but decode rows, and some others, have ended when they are launched.

    The launch of a step that was planned ahead, and its result, may fail.
    """

    can_overlap = False
    can_plan_ahead = True
    is_ahead = False

    def launch(self, batch: Batch) -> LaunchedStep:
        assert not self._waiting, "a step runs already"
        self.is_ahead = bool(batch.future_token_indices)
        if self.is_ahead:
            assert batch.step_id == self._last_step_id + 1, "the tokens are those of another step"
            if self.fails("launch"):
                raise ArithmeticError("a launch that fails")
            assert only_samples(batch), "only decode rows are planned ahead"
            assert batch.logits_processing is None, "what changes logits is not known yet"
            self.num_ahead += 1
            batch = with_known_tokens(batch, self._last_tokens.tobytes())
        return super().launch(batch)

    def result_of(self, launched: LaunchedStep) -> ForwardOutput:
        if self.is_ahead and self.fails("result"):
            self._waiting.popleft()
            self._spoil(launched.batch)
            raise ArithmeticError("a step that fails")
        return super().result_of(launched)

    def has_ended(self, launched: LaunchedStep) -> bool:
        return not only_samples(launched.batch) or launched.batch.step_id % 7 == 0


class AheadBench(OverlappedBench):
    """An `OverlappedBench` on such a runner. A message arrives during one step in ten (`has_news`)."""

    def __init__(self, **settings: Any) -> None:
        self._chance = random.Random(3)
        self.num_news = 0
        super().__init__(plans_decodes_alone=True, **settings)

    def make_device(self) -> OverlappedRunner:
        return AheadRunner(self.runner, self._attempt_of)

    def make_stepper(self) -> Stepper:
        return Stepper(self.scheduler, self.device, self.times, self.clock, self.clock, self.has_news)

    def has_news(self) -> bool:
        is_new = self._chance.random() < 0.1
        self.num_news += is_new
        return is_new
