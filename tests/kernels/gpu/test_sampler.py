"""The sampler over the Triton kernels: the tokens and logprobs of the CPU, and no waiting for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from kernels.gpu import triton_kernels
from messages.columns import pack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch
from scheduler_proc.computing.sampling.logprobs import TokenLogprobs, sampled_logprobs
from scheduler_proc.computing.sampling.plan import SamplingPlan, plan_sampling
from scheduler_proc.computing.sampling.sampler import choose_tokens
from tests.scheduler_proc.computing.sampling.row_processing import RowProcessing, plan_logits_processing
from tests.scheduler_proc.computing.sampling.sampling_batch import make_batch

# Triton's interpreter turns the end of a loop from an array into an integer.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

VOCAB_SIZE = 300
HISTORY = tuple(range(0, 60, 2)) * 2
ROWS = [
    (SamplingParams(1, temperature=0.0), RowProcessing()),
    (SamplingParams(1, temperature=0.7, seed=1), RowProcessing()),
    (SamplingParams(1, top_k=5, seed=2), RowProcessing()),
    (SamplingParams(1, top_p=0.5, seed=-4), RowProcessing(biases=((7, 5.0), (7, 1.0), (9, -float("inf"))))),
    (SamplingParams(1, min_p=0.3, seed=5), RowProcessing()),
    (SamplingParams(1, top_k=7, min_p=0.01, typical_p=0.9, seed=8), RowProcessing()),
    (SamplingParams(1, temperature=0.0), RowProcessing(allowed_ids=(4, 9, 250), grammar_ids=(9, 250, 251))),
    (SamplingParams(1, temperature=0.0), RowProcessing(allowed_ids=())),
    (
        SamplingParams(1, top_k=100_000, top_p=0.9, seed=6),
        RowProcessing(repetition=1.5, history=HISTORY, num_prompt=30),
    ),
    (SamplingParams(1, seed=7), RowProcessing(frequency=0.5, presence=1.0, history=HISTORY, num_prompt=9)),
]
EVERY_OPERATION = {
    *("greedy", "draw", "sample", "draw_filtered", "filter_top", "filter_min_p", "top_logprobs"),
    *("penalize_repetition", "penalize_occurrence", "add_biases", "allow_tokens", "apply_bitmask"),
}


def make_step(rows: list[tuple[SamplingParams, RowProcessing]], num_logprobs: list[int]) -> Batch:
    batch = make_batch([params for params, _ in rows], range(100, 100 + len(rows)))
    processing = plan_logits_processing([own for _, own in rows], VOCAB_SIZE)
    return msgspec.structs.replace(batch, logits_processing=processing, num_logprobs=pack_int32(num_logprobs))


NUM_LOGPROBS = [-1, 3, -1, 0, 5, -1, -1, 2, -1, -1]
BATCHES = {
    "all": make_step(ROWS, NUM_LOGPROBS),
    "greedy": make_step(ROWS[:1], [-1]),
    "plain": make_step(ROWS[:2], [-1, 2]),
    "filtered": make_step(ROWS[2:3] * 3, [-1] * 3),
}


def make_logits(num_rows: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return (torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 3).to(device, torch.bfloat16)


def run(logits: Tensor, plan: SamplingPlan, columns: dict[str, Tensor]) -> tuple[Tensor, TokenLogprobs | None]:
    tokens = choose_tokens(logits, plan, columns)
    return tokens, sampled_logprobs(logits, tokens, plan, columns) if plan.num_top >= 0 else None


def send(plan: SamplingPlan, device: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(column.copy()).to(device) for name, column in plan.columns.items()}


@pytest.mark.parametrize("name", BATCHES)
def test_gives_the_tokens_and_the_logprobs_of_the_cpu(name: str, device: str, backend: dict[str, int]) -> None:
    """On a GPU it does so without waiting: torch raises an error where it would."""
    batch = BATCHES[name]
    num_rows = len(batch.temperatures) // 4
    logits, plan = make_logits(num_rows, device), plan_sampling(batch, VOCAB_SIZE)
    columns = send(plan, device)
    if device == "cuda":
        run(logits, plan, columns)  # builds the kernels
    with no_synchronization(device):
        tokens, logprobs = run(logits, plan, columns)
    assert (EVERY_OPERATION - {"greedy"} <= set(backend)) == (name == "all")
    triton_kernels._loaded.clear()
    expected, target = run(logits.cpu(), plan, send(plan, "cpu"))
    assert tokens.tolist() == expected.tolist()
    assert (logprobs is None) == (target is None) == (name in ("greedy", "filtered"))
    if logprobs is not None and target is not None:
        assert logprobs.token_ids.tolist() == target.token_ids.tolist()
        assert logprobs.top_ids.tolist() == target.top_ids.tolist()
        torch.testing.assert_close(logprobs.logprobs.cpu(), target.logprobs, rtol=0, atol=1e-5, equal_nan=True)


@contextmanager
def no_synchronization(device: str) -> Iterator[None]:
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels are not run: their launches are noted."""
    names: list[str] = []

    def record(kernel: Any, *arguments: Any, **named: Any) -> None:
        names.append(kernel.fn.__name__)

    interpreter = pytest.importorskip("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter.InterpretedFunction, "run", record)
    monkeypatch.setattr(pytest.importorskip("triton").JITFunction, "run", record)
    return names


@pytest.mark.parametrize("name", BATCHES)
def test_never_asks_the_device_for_a_value(name: str, launched: list[str]) -> None:
    """Tensors of the device "meta" have no values: whatever needs one raises."""
    plan = plan_sampling(BATCHES[name], VOCAB_SIZE)
    triton_kernels.load_triton_kernels("meta")
    num_rows = BATCHES[name].num_sampled
    logits = torch.empty(num_rows, VOCAB_SIZE, dtype=torch.bfloat16, device="meta")
    tokens, logprobs = run(logits, plan, send(plan, "meta"))
    assert (tokens.shape, tokens.dtype) == ((num_rows,), torch.int32)
    assert (logprobs is None) == (name in ("greedy", "filtered"))
    assert ("best_of_part_kernel" in launched) == (name != "filtered"), "rows that are filtered are read once"
    assert ("draw_row_kernel" in launched) == (name in ("all", "filtered"))
    assert ("filter_top_kernel" in launched) == (name == "all")


READS = {
    "a condition": lambda x: bool(x.any()),
    "a number": Tensor.item,
    "a list": Tensor.tolist,
    "a copy on the host": Tensor.cpu,
    "indices of a mask": lambda x: (x > 0).nonzero(),
    "a masked part": lambda x: x[x > 0],
    "as many as it says": torch.repeat_interleave,
}


@pytest.mark.parametrize("what", READS)
def test_a_tensor_without_values_raises_where_one_is_read(what: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        READS[what](torch.ones(1, dtype=torch.int64, device="meta"))
