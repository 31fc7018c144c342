"""What the runner does on any device: each step is planned once, prepared, submitted and read, in order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from messages.columns import pack_int32, unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch
from scheduler_proc.computing import runner as runner_module
from scheduler_proc.computing.backends.cpu.forward_passes import copy_columns
from scheduler_proc.computing.device import Forward
from scheduler_proc.computing.parallel import ALONE
from scheduler_proc.computing.pipeline import WHOLE
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.sampling.logprobs import MAX_LOGITS
from scheduler_proc.computing.sampling.results import Forwarded, Result
from scheduler_proc.computing.step.shapes import StepLimits
from tests.scheduler_proc.computing.sampling.sampling_batch import make_batch

VOCAB_SIZE = 20
BATCHES = [
    make_batch([SamplingParams(1, temperature=0.0)] * 3, range(3)),
    make_batch([SamplingParams(1, seed=1), SamplingParams(1, top_k=3, seed=2)], range(2)),
]


@dataclass
class Config:
    vocab_size: int = VOCAB_SIZE


class Model:
    model = Config()
    parallel, pipeline = ALONE, WHOLE
    adapters = span_rows = None


class NotingPasses:
    """Forward passes with random logits; notes what it is asked for."""

    def __init__(self, last_tokens: Tensor | None, notes: list[str]):
        self.last_tokens = last_tokens
        self.can_plan_ahead = False
        self._notes = notes

    def prepare(self, batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        self._notes.append("prepare")
        logits = torch.randn(batch.num_sampled, VOCAB_SIZE, generator=torch.Generator().manual_seed(batch.num_sampled))

        def forward() -> Forwarded:
            self._notes.append("forward")
            return Forwarded(logits, logits[:0], copy_columns(columns))

        return forward


class LazyDevice:
    """Does work when its result is waited for."""

    has_ended = has_own_processor = False
    max_logits = MAX_LOGITS

    def submit(self, work: Callable[[], Result]) -> "LazyDevice":
        self._work = work
        return self

    def wait(self) -> Result:
        return self._work()


def make_runner(last_tokens: Tensor | None, notes: list[str]) -> Runner:
    model: Any = Model()
    return Runner(model, LazyDevice(), NotingPasses(last_tokens, notes), StepLimits(4, 64, 8), num_pages=32)


def test_a_step_is_planned_once_and_computed_when_its_device_does(monkeypatch: Any) -> None:
    notes: list[str] = []
    plan = runner_module.plan_sampling

    def noting(batch: Batch, vocab_size: int) -> Any:
        notes.append("plan")
        return plan(batch, vocab_size)

    monkeypatch.setattr(runner_module, "plan_sampling", noting)
    runner = make_runner(None, notes)
    for batch in BATCHES:
        del notes[:]
        launched = runner.launch(batch)
        assert notes == ["plan", "prepare"]
        assert len(unpack_int32(launched.result().next_tokens)) == batch.num_sampled
        assert notes == ["plan", "prepare", "forward"]


def test_the_tokens_of_a_step_stay_for_the_next_where_steps_overlap() -> None:
    last_tokens = torch.full((4,), -7, dtype=torch.int32)
    runner = make_runner(last_tokens, [])
    assert runner.can_overlap
    tokens = list(unpack_int32(runner.run(BATCHES[0]).next_tokens))
    assert last_tokens.tolist() == [*tokens, -7]


def test_the_tokens_of_a_step_are_filled_in_when_the_next_is_launched() -> None:
    """Where steps are planned ahead and the tokens stay nowhere."""
    prepared: list[Batch] = []
    runner = make_runner(None, [])
    passes: Any = runner.forward_passes
    prepare = passes.prepare

    def noting(batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        prepared.append(batch)
        return prepare(batch, columns)

    passes.prepare = noting
    tokens = list(unpack_int32(runner.run(BATCHES[0]).next_tokens))
    runner.run(replace(BATCHES[0], future_token_indices=pack_int32([2, -1, 0])))
    known = list(unpack_int32(BATCHES[0].token_ids))
    assert list(unpack_int32(prepared[1].token_ids)) == [tokens[2], known[1], tokens[0]]


def test_what_the_scheduler_is_notified() -> None:
    runner = make_runner(None, [])
    assert (runner.num_pages, runner.max_num_batched_tokens, runner.can_overlap) == (32, 64, False)
