"""Tests that need a GPU: graphs and overlap change no token, nothing waits, too little memory is reported."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.gpu.fusions import FUSIONS, fuse
from messages.errors import BootError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.backends.cuda.device import CudaDevice
from scheduler_proc.computing.backends.cuda.forward_passes import GpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import PROMPTS, VARIED, ignore_report, num_graphs
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, plan_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(300),  # the first test compiles all kernels
]
FLAGS = {"device": "cuda", "max_num_seqs": 6, "max_num_batched_tokens": 64}
GREEDY = [SamplingParams(12, temperature=0.0)] * len(PROMPTS)
CAPTURED = ("gpt2", "llama-gqa-tied", "qwen3-gqa-tied", "qwen2moe")
"""Variants whose steps ran on an H200, captured and not (`docs/use/models.md`)."""


@pytest.fixture(scope="module", params=CAPTURED)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    build_checkpoint(path, request.param)
    return path


def load(path: Path, **flags: object) -> Runner:
    """Loads the model, with all kernels, and with graphs unless `flags` refuse them."""
    runner = load_runner(make_config(path, **FLAGS | flags), ignore_report)
    assert runner.degraded == ""
    return runner


@pytest.fixture(scope="module")
def captured(model_dir: Path) -> Runner:
    return load(model_dir)


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(chunk_tokens=7, stagger=1, seed=5)], ids=str)
def test_graphs_give_the_tokens_of_single_launches(model_dir: Path, captured: Runner, schedule: Schedule) -> None:
    assert num_graphs(captured) == 12
    eager = generate(load(model_dir, enforce_eager=True), PROMPTS, 12, schedule, GREEDY)
    assert generate(captured, PROMPTS, 12, schedule, GREEDY) == eager
    on_cpu = load_runner(make_config(model_dir), ignore_report)
    assert generate(on_cpu, PROMPTS, 12, schedule, GREEDY) == eager


@pytest.mark.parametrize("variant", ["gpt_neox", "deepseek-v3", "gpt-oss"])
def test_what_transformers_computes_has_the_tokens_of_a_cpu(tmp_path: Path, variant: str) -> None:
    build_checkpoint(tmp_path, variant)
    schedule, flags = Schedule(chunk_tokens=7, stagger=1, seed=5), {"model_impl": "transformers"}
    on_cpu = load_runner(make_config(tmp_path, **flags), ignore_report)
    on_gpu = load(tmp_path, **flags)
    assert num_graphs(on_gpu) == 0
    assert generate(on_gpu, PROMPTS, 12, schedule, GREEDY) == generate(on_cpu, PROMPTS, 12, schedule, GREEDY)


@pytest.mark.parametrize("variant", ["youtu", "glm4-moe-lite"])
def test_captured_latent_attention_has_the_tokens_of_a_cpu(tmp_path: Path, variant: str) -> None:
    build_checkpoint(tmp_path, variant)
    schedule = Schedule(chunk_tokens=7, stagger=1, seed=5)
    captured, on_cpu = load(tmp_path), load_runner(make_config(tmp_path), ignore_report)
    assert num_graphs(captured) == 12
    assert generate(captured, PROMPTS, 12, schedule, GREEDY) == generate(on_cpu, PROMPTS, 12, schedule, GREEDY)


def test_kernels_of_few_rows_give_the_same_tokens(tmp_path: Path) -> None:
    """One after the other, and each launched before the last one has ended; in float32, captured and not."""
    build_checkpoint(tmp_path, "qwen3-biases-untied", head_dim=64)
    schedule = Schedule(chunk_tokens=7, stagger=1, seed=5)
    expected = generate(load(tmp_path), PROMPTS, 12, schedule, GREEDY)
    try:
        for fusions in (FUSIONS[:1], FUSIONS):
            fuse(*fusions)
            for is_eager in (False, True):
                runner = load(tmp_path, enforce_eager=is_eager)
                assert generate(runner, PROMPTS, 12, schedule, GREEDY) == expected
    finally:
        fuse()


def test_overlapped_steps_give_the_same_tokens(model_dir: Path) -> None:
    params = [SamplingParams(5 + 7 * i, temperature=0.0) for i in range(len(PROMPTS))]
    engines = [OfflineEngine(make_config(model_dir, **FLAGS, overlap=overlap)) for overlap in (True, False)]
    assert [engine.degraded for engine in engines] == ["", ""]
    overlapped, alone = ([output.token_ids for output in engine.generate(PROMPTS, params)] for engine in engines)
    assert overlapped == alone


def test_graphs_over_a_cache_of_fp8_give_the_tokens_of_single_launches(tmp_path: Path) -> None:
    """A graph computes with more rows, so codes may be rounded otherwise: one prompt may go another way."""
    build_checkpoint(tmp_path, "qwen3-gqa-tied", head_dim=64)
    graphs, single = (
        generate(load(tmp_path, kv_cache_dtype="fp8", enforce_eager=is_eager), PROMPTS, 8, params=GREEDY)
        for is_eager in (False, True)
    )
    assert sum(one == other for one, other in zip(graphs, single, strict=True)) >= len(PROMPTS) - 1


def test_pages_are_copied_out_and_back_between_steps(tmp_path: Path) -> None:
    """The copies come after the steps launched before them, and before the later ones, on whatever stream they are."""
    build_checkpoint(tmp_path, "qwen3-gqa-tied")
    runner = load(tmp_path)
    assert isinstance(runner.forward_passes, GpuForwardPasses)
    cache = runner.forward_passes.cache
    copies = PageCopies(cache.tensors, cache.num_pages, CudaDevice(torch.device("cuda:0")))
    rows = [Row(i, list(PROMPTS[2]), 40, GREEDY[0], pages=[3 * i, 3 * i + 1, 3 * i + 2]) for i in range(3)]
    launched = runner.launch(plan_batch(1, [(row, 40) for row in rows], 16))
    rows_on_host = copies.copy_out(range(9)).wait()[0]
    host = copies.allocate_host(9)
    host.copy_(torch.as_tensor(rows_on_host).view(9, -1))
    before = [tensor[:, : 9 * 16].clone() for tensor in cache.tensors]
    for tensor in cache.tensors:
        tensor.zero_()
    copies.copy_in(range(9), host)
    launched.result()
    for tensor, old in zip(cache.tensors, before, strict=True):
        # As bytes: slots that were never written may hold NaN.
        assert torch.equal(tensor[:, : 9 * 16].clone().view(torch.uint8), old.view(torch.uint8))


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("params", [*VARIED, SamplingParams(1, num_prompt_logprobs=2)], ids=repr)
def test_nothing_waits_for_the_device_but_a_result(
    captured: Runner, request: pytest.FixtureRequest, params: SamplingParams
) -> None:
    rows = [Row(i, list(PROMPTS[2]), 40, params, pages=[3 * i, 3 * i + 1, 3 * i + 2]) for i in range(3)]
    prefill = plan_batch(1, [(row, 40) for row in rows], 16)
    mixed = plan_batch(2, [(Row(3, [1, 2], 1, params, num_computed=1, pages=[9]), 1), (rows[0], 40)], 16)
    decode = plan_batch(3, [(Row(3, [1, 2], 1, params, num_computed=1, pages=[9]), 1)], 16)
    steps = [prefill, mixed, decode]
    first = [captured.run(batch) for batch in steps]  # kernels are compiled in these
    request.getfixturevalue("waiting_is_an_error")
    launched = [captured.launch(batch) for batch in steps]
    assert [step.result().next_tokens for step in launched] == [output.next_tokens for output in first]


def test_memory_that_does_not_suffice_is_a_clear_error(model_dir: Path) -> None:
    with pytest.raises(BootError, match="the KV cache is too small for one request of full length: the memory that is"):
        load(model_dir, num_pages=None, gpu_memory_utilization=0.001)
    assert load(model_dir, num_pages=None, kv_cache_memory_gb=0.01).num_pages > 6
