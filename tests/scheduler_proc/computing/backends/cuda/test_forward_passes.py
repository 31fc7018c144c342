"""The runner on a device that stands in for a GPU: it must do what it does on a CPU, token by token."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kernels.gpu import triton_kernels
from kernels.plans import prefill_tiles
from messages.columns import pack_int32, unpack_int32
from messages.errors import BootError
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cuda import attention_plans, loading
from scheduler_proc.computing.backends.cuda.captured_steps import CapturedStep, CapturedSteps, Report
from scheduler_proc.computing.backends.cuda.forward_passes import MORE_GRAPH_BYTES, GpuForwardPasses
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors, allocate_cache
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import cache_plan, formats
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import build_checkpoint, make_config
from tests.kernels.gpu.triton_in_use import DEVICE, triton_in_use
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend, no_triton
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, plan_batch
from tests.scheduler_proc.computing.loading.adapters.adapter_cases import make_adapter, merge, merge_tables
from tests.scheduler_proc.test_greedy_tokens import Recalled, run

FLAGS = {"max_num_seqs": 6, "max_num_batched_tokens": 64}
PROMPTS = [[5, 6, 7], [5, 6, 7], list(range(40)), [9], [100, 200, 300, 12, *[4] * 7], list(range(60, 80))]
SCHEDULES = [Schedule(), Schedule(chunk_tokens=7, stagger=1, seed=5), Schedule(chunk_tokens=1, seed=2)]
VARIED = [
    SamplingParams(12, temperature=0.0),
    SamplingParams(12, temperature=1.5, seed=1),
    SamplingParams(12, temperature=0.9, top_k=20, seed=-5),
    SamplingParams(12, temperature=0.0, repetition_penalty=1.5, num_logprobs=3),
    SamplingParams(12, temperature=1.0, top_p=0.7, min_p=0.02, seed=1, num_logprobs=0),
    SamplingParams(12, temperature=0.0, bias_ids=pack_int32([3]), bias_values=b"\0\0\x80\xff"),
]
"""-inf is the bias of the last one."""


@dataclass
class Pair:
    """The same model on both devices."""

    path: Path
    cpu: Runner
    gpu: Runner
    device: LateDevice


def ignore_report(text: str, fraction: float | None) -> None:
    """Ignores a report."""


def load_late(
    path: Path,
    device: LateDevice,
    load_triton_kernels: Callable[[str], None] = no_triton,
    report: Report = ignore_report,
    **flags: object,
) -> Runner:
    """Loads the model as on a GPU that is `device`."""
    with late_backend(lambda: device, load_triton_kernels):
        return load_runner(make_config(path, **FLAGS | flags), report)


def passes_of(runner: Runner) -> GpuForwardPasses:
    assert isinstance(runner.forward_passes, GpuForwardPasses)
    return runner.forward_passes


def num_graphs(runner: Runner) -> int:
    captured = passes_of(runner).captured
    assert captured is not None
    return len(captured._captured)


def make_pair(path: Path, variant: str) -> Pair:
    build_checkpoint(path, variant)
    cpu = load_runner(make_config(path, **FLAGS), ignore_report)
    device = LateDevice()
    return Pair(path, cpu, load_late(path, device), device)


@pytest.fixture(
    scope="module",
    params=["gpt2", "llama-gqa-tied", "qwen2-windows", "qwen3-gqa-tied", "gemma4-shared-kv", "qwen3_5", "mamba2"],
)
def each_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("llama"), "llama-mqa")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_tokens_are_those_of_the_cpu(each_pair: Pair, schedule: Schedule) -> None:
    """Prefills, decode rows and both in one step, in shapes with room to spare, with every way to choose a token."""
    num_before = each_pair.device.num_replays
    expected = generate(each_pair.cpu, PROMPTS, 12, schedule, VARIED)
    assert generate(each_pair.gpu, PROMPTS, 12, schedule, VARIED) == expected
    assert each_pair.device.num_replays - num_before >= 11


def test_drafts_change_no_token(each_pair: Pair) -> None:
    """Includes steps that sample after more tokens than they may have rows: these have no fixed shape."""
    prompts = PROMPTS[:3] + PROMPTS[4:]
    num_pages, page_size = each_pair.cpu.num_pages, 16
    expected, _ = run(each_pair.cpu, prompts, num_pages, 64, page_size=page_size, max_tokens=24)
    drafter = Recalled(expected)
    num_before = each_pair.device.num_replays
    outputs, _ = run(each_pair.gpu, prompts, num_pages, 64, drafter, page_size, max_tokens=24)
    assert outputs == expected
    assert min(drafter.num_right, drafter.num_wrong) > 5
    assert each_pair.device.num_replays > num_before


def test_logprobs_are_those_of_the_cpu(pair: Pair) -> None:
    """A step with logprobs of prompts is of no fixed shape; one with logprobs of its output alone is."""
    params = [SamplingParams(12, temperature=0.0, num_logprobs=2, num_prompt_logprobs=n) for n in (1, None)]
    for use, num_replays in ((params, 0), (params[1:], 1)):
        rows = [Row(i, list(PROMPTS[2]), 40, p, pages=[3 * i, 3 * i + 1, 3 * i + 2]) for i, p in enumerate(use)]
        batch = plan_batch(4, [(row, 40) for row in rows], 16)
        before = pair.device.num_replays
        expected, output = pair.cpu.run(batch), pair.gpu.run(batch)
        assert pair.device.num_replays - before == num_replays
        assert output.next_tokens == expected.next_tokens
        for ours, theirs in ((output.logprobs, expected.logprobs), (output.prompt_logprobs, expected.prompt_logprobs)):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert (ours.token_ids, ours.top_ids, ours.num_top) == (
                    theirs.token_ids,
                    theirs.top_ids,
                    theirs.num_top,
                )


def test_adapters_are_those_of_the_cpu(tmp_path: Path) -> None:
    """Each shape has a graph with adapters and one without. An adapter with a head of its own is in none."""
    model = build_checkpoint(tmp_path / "model", "llama-mqa")
    flags = FLAGS | {"max_loras": 3, "max_lora_rank": 4}
    cpu, device = load_runner(make_config(tmp_path / "model", **flags), ignore_report), LateDevice()
    gpu = load_late(tmp_path / "model", device, max_loras=3, max_lora_rank=4)
    cases = [make_adapter(model, 4, seed=1), make_adapter(model, 2, seed=2), make_adapter(model, 3, seed=3)]
    merge_tables(merge(model, cases[2]), cases[2], "saved")
    for slot, case in enumerate(cases):
        adapter = cpu.read_adapter(case.write(tmp_path / str(slot)))
        for runner in (cpu, gpu):
            runner.place_adapter(slot, adapter)
        num_before, slots = device.num_replays, [slot, -1, 0, -1, 0, slot]
        expected = generate(cpu, PROMPTS, 8, SCHEDULES[1], VARIED, adapter_slots=slots)
        assert generate(gpu, PROMPTS, 8, SCHEDULES[1], VARIED, adapter_slots=slots) == expected
        assert (device.num_replays > num_before) == (slot < 2)
    num_before = device.num_replays
    assert generate(gpu, PROMPTS, 8) == generate(cpu, PROMPTS, 8)
    assert device.num_replays > num_before


def decode_steps(rows: list[Row], num_steps: int) -> list[Batch]:
    """Returns steps of all rows, each planned before the one before it has a result; rows change places every time."""
    steps: list[Batch] = []
    order = list(range(len(rows)))
    for step in range(num_steps):
        before, order = order, order[1:] + order[:1]
        batch = plan_batch(step, [(rows[i], 1) for i in order], 16)
        if steps:
            sources = pack_int32(before.index(i) for i in order)
            batch = msgspec.structs.replace(batch, token_ids=pack_int32([0] * len(rows)), future_token_indices=sources)
        steps.append(batch)
        for row in rows:
            row.num_computed += 1
            row.ids.append(0)
    return steps


@pytest.mark.parametrize("num_rows", [1, 3, 6])
def test_a_step_takes_the_tokens_that_the_one_before_it_samples(pair: Pair, num_rows: int) -> None:
    params = [VARIED[0], VARIED[1], VARIED[2]] * 2
    prompts = PROMPTS[:num_rows]
    expected = generate(pair.cpu, prompts, 8, params=params)
    rows = [Row(i, list(p), len(p), params[i], pages=list(range(4 * i, 4 * i + 4))) for i, p in enumerate(prompts)]
    launched = [pair.gpu.launch(plan_batch(99, [(row, len(row.ids)) for row in rows], 16))]
    for row in rows:
        row.num_computed = len(row.ids)
        row.ids.append(0)
    order = list(range(num_rows))
    outputs: list[list[int]] = [[] for _ in rows]
    first, *steps = decode_steps(rows, 7)
    sources = pack_int32([*order[1:], *order[:1]])
    steps = [msgspec.structs.replace(first, token_ids=pack_int32([0] * num_rows), future_token_indices=sources), *steps]
    for index in range(8):
        if index < 7:
            launched.append(pair.gpu.launch(steps[index]))
        num_done = pair.device.num_done
        tokens = unpack_int32(launched[index].result().next_tokens)
        assert pair.device.num_done == num_done + 1, "another step was waited for"
        for place, token in enumerate(tokens):
            outputs[order[place]].append(token)
        order = order[1:] + order[:1]
    assert outputs == expected


PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.6}


def test_penalties_are_those_of_all_tokens_also_one_step_ahead(each_pair: Pair) -> None:
    check_penalties(each_pair, PENALTIES | {"temperature": 1.2})


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_each_penalty_by_itself(pair: Pair, temperature: float) -> None:
    for name, value in PENALTIES.items():
        check_penalties(pair, {name: value, "temperature": temperature})


def check_penalties(pair: Pair, params: dict[str, float]) -> None:
    """On a model that repeats itself without."""
    prompts = PROMPTS[:3] + PROMPTS[4:]
    target: dict[str, Any] = {"page_size": 16, "max_tokens": 20, "ignore_eos": True} | params
    expected, _ = run(pair.cpu, prompts, pair.cpu.num_pages, 64, **target)
    outputs, scheduler = run(pair.gpu, prompts, pair.gpu.num_pages, 64, **target)
    assert outputs == expected, params
    gauges = scheduler.gauges()
    assert gauges["steps_ahead"] >= gauges["steps"] - 1


def test_a_row_without_a_token_is_a_source_that_does_no_harm(pair: Pair) -> None:
    """A row whose logits are not finite has the token -1, of which there is no embedding."""
    cache = passes_of(pair.gpu).cache.layers[0][0]
    rows = [Row(i, [5, 6, 7, 8], 3, num_computed=3, pages=[20 + i]) for i in range(2)]
    cache.values[21 * 16] = float("nan")
    pair.gpu.run(plan_batch(1, [(rows[0], 1)], 16))
    first = pair.gpu.launch(plan_batch(1, [(row, 1) for row in rows], 16))
    for row in rows:
        row.ids.append(0)
        row.num_computed += 1
    batch = plan_batch(2, [(row, 1) for row in rows], 16)
    second = pair.gpu.launch(msgspec.structs.replace(batch, future_token_indices=pack_int32([0, 1])))
    tokens = unpack_int32(first.result().next_tokens)
    assert tokens[0] >= 0 > tokens[1]
    assert unpack_int32(second.result().next_tokens)[0] >= 0
    cache.values[21 * 16 : 22 * 16] = 0


def test_a_cache_of_codes_changes_no_number_format_but_its_own(pair: Pair) -> None:
    """What a captured step leaves for the head is no code."""
    flags = {"kv_cache_dtype": "int8"}
    on_cpu = load_runner(make_config(pair.path, **FLAGS | flags), ignore_report)
    late = load_late(pair.path, LateDevice(), **flags)
    assert generate(late, PROMPTS[:3], 6) == generate(on_cpu, PROMPTS[:3], 6)


def test_without_graphs_and_without_overlap(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    device = LateDevice()
    eager = load_late(pair.path, device, enforce_eager=True, overlap=False)
    assert pair.gpu.can_overlap
    assert not eager.can_overlap
    assert [num_graphs(runner) for runner in (pair.gpu, eager)] == [12, 0]
    assert generate(eager, PROMPTS, 6, SCHEDULES[1], VARIED) == generate(pair.cpu, PROMPTS, 6, SCHEDULES[1], VARIED)
    assert device.num_replays == 0
    assert "CUDA graphs cannot be captured" not in caplog.text
    assert [pair.gpu.degraded, eager.degraded, pair.cpu.degraded] == ["", "", ""]


class CompilationError(Exception):
    """As Triton's: no `RuntimeError`, and what is wrong comes behind the source of the kernel."""


CAPTURE_ERRORS = {
    "CUDA out of memory.": LateDevice.capture_error,
    "CompilationError: out of resource: shared memory": CompilationError(
        "at 12:4:\n  acc = tl.dot(query_MD, key_DN)\n  ^\nout of resource: shared memory\n"
    ),
    "AssertionError": AssertionError(),
}


@pytest.mark.parametrize("num_captured", [0, 3, 5])
@pytest.mark.parametrize("reason", CAPTURE_ERRORS)
def test_where_no_pass_can_be_captured_steps_run_without(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, num_captured: int, reason: str
) -> None:
    """The pass before a capture fails: with 0 in the rehearsal, with 3 and 5 later. It is not tried again."""
    capture, calls = CapturedSteps._capture, iter(range(100))

    def fail_after(*arguments: Any) -> CapturedStep:
        if next(calls) == num_captured:
            raise CAPTURE_ERRORS[reason]
        return capture(*arguments)

    monkeypatch.setattr(CapturedSteps, "_capture", fail_after)
    device = LateDevice()
    loaded = load_late(pair.path, device)
    assert next(calls) == num_captured + 1
    assert caplog.text.count("CUDA graphs cannot be captured") == 1
    assert f"slower: {reason} Where memory is short" in caplog.text
    assert loaded.degraded == f"no CUDA graphs: {reason}"
    assert loaded.can_overlap
    assert generate(loaded, PROMPTS[:2], 4) == generate(pair.cpu, PROMPTS[:2], 4)
    assert (device.num_replays, num_graphs(loaded)) == (0, 0)


@pytest.mark.parametrize("num_captures", [0, 3, 5])
@pytest.mark.parametrize("reason", CAPTURE_ERRORS)
def test_a_capture_that_fails_ends_the_start(pair: Pair, num_captures: int, reason: str) -> None:
    """Steps must not run in a process whose allocator has not left the capture."""
    device = LateDevice(num_captures=num_captures)
    device.capture_error = CAPTURE_ERRORS[reason]
    with pytest.raises(BootError, match=f"CUDA graphs cannot be captured: {reason}.*--enforce-eager"):
        load_late(pair.path, device)


def test_without_triton_torch_computes(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fail(device_type: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'")

    loaded = load_late(pair.path, LateDevice(), fail)
    assert "Triton cannot be loaded (No module named 'triton')" in caplog.text
    assert loaded.degraded == "Triton cannot be loaded, so plain torch computes"
    assert not loaded.can_overlap
    assert generate(loaded, PROMPTS[:3], 4) == generate(pair.cpu, PROMPTS[:3], 4)


def load_failing(name: str, error: Exception) -> Callable[..., None]:
    """Returns a stand-in for the kernel of an operation, of which Triton makes nothing."""
    triton: dict[str, Any] = {"__name__": "triton.compiler.compiler", "error": error}
    exec("def launch():\n    raise error", triton)
    kernel: dict[str, Any] = {"__name__": f"kernels.gpu.{name}", "launch": triton["launch"]}
    exec("def call(*arguments):\n    launch()", kernel)
    return kernel["call"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Loads the kernels that fail for tensors of the CPU: of attention, and of what draws tokens."""

    def load(device_type: str) -> None:
        error = CompilationError("at 12:4:\n  acc = tl.dot(query_MD, key_DN)\n  ^\nout of resource: shared memory\n")
        kernels = {name: load_failing(name, error) for name in ("paged_decode", "draw")}
        monkeypatch.setattr(triton_kernels, "_loaded", kernels)
        monkeypatch.setattr(triton_kernels, "_device_type", device_type)

    return load


def test_a_kernel_that_cannot_be_compiled_is_left_out_alone(
    pair: Pair, caplog: pytest.LogCaptureFixture, failing: Callable[[str], None]
) -> None:
    device = LateDevice()
    loaded = load_late(pair.path, device, failing)
    reason = "CompilationError: out of resource: shared memory"
    assert sorted(loaded.degraded.split("; ")) == [
        f"plain torch computes {name}: {reason}" for name in ("draw", "paged_decode")
    ]
    assert caplog.text.count("the Triton kernel of draw cannot be compiled or launched") == 1
    assert num_graphs(loaded) == num_graphs(pair.gpu), "the graphs are captured without it"
    assert generate(loaded, PROMPTS, 6, SCHEDULES[1], VARIED) == generate(pair.cpu, PROMPTS, 6, SCHEDULES[1], VARIED)
    assert device.num_replays > 0


def test_attention_that_cannot_be_compiled_to_count_its_programs_is_left_out_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, failing: Callable[[str], None]
) -> None:
    """It is not loaded again when the plans are made again without it, which would never end."""
    calls: list[bool] = []

    def count(*arguments: object) -> int:
        calls.append("paged_decode" in triton_kernels._loaded)
        assert len(calls) < 3, "it is tried again and again"
        if calls[-1]:
            triton_kernels._loaded["paged_decode"]()
        return 1

    monkeypatch.setattr(attention_plans, "count_programs", count)
    loaded = load_late(pair.path, LateDevice(), failing, enforce_eager=True)
    assert calls == [True, False]
    assert loaded.degraded.count("plain torch computes paged_decode") == 1


def test_what_a_draft_model_lacks_is_notified_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def warm_up(factory: loading.GpuRunnerFactory, runner: Runner, cache: KVTensors) -> str:
        return "the draft model lacks" if factory._config.model.enforce_eager else "the model lacks"

    monkeypatch.setattr(loading.GpuRunnerFactory, "warm_up", warm_up)
    assert (
        load_late(pair.path, LateDevice(), draft_model=pair.path).degraded == "the model lacks; the draft model lacks"
    )


def test_what_is_raised_by_something_else_ends_the_start(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of our own code is no reason to serve without a kernel."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    def load(device_type: str) -> None:
        monkeypatch.setattr(triton_kernels, "_loaded", {"draw": fail})
        monkeypatch.setattr(triton_kernels, "_device_type", device_type)

    with pytest.raises(RuntimeError, match="a bug"):
        load_late(pair.path, LateDevice(), load)


def test_progress_is_reported_with_the_memory_taken(pair: Pair) -> None:
    reports: list[tuple[str, float | None]] = []
    load_late(pair.path, LateDevice(), report=lambda *report: reports.append(report))
    fractions = [fraction for text, fraction in reports if text.startswith("capturing CUDA graphs (0.00 GiB)")]
    assert fractions[:3] == [0.0, 1 / 3, 2 / 3]
    assert fractions[3] == 0.0
    assert fractions[-1] == max(fraction for fraction in fractions if fraction is not None) > 0.9


def test_the_cache_takes_its_share_of_what_steps_and_graphs_leave(pair: Pair) -> None:
    """The pages that the full step was run on are free again; for graphs not yet captured some room is left."""
    layers = passes_of(pair.gpu).cache.layers
    page_bytes = 2 * len(layers) * 16 * layers[0][0].num_heads * layers[0][0].head_dim * 4
    flags = {"num_pages": None, "gpu_memory_utilization": 0.5}
    eager = load_late(pair.path, LateDevice(8 << 20, 2 << 20), **flags, max_num_seqs=200, enforce_eager=True)
    assert eager.num_pages == ((2 << 20) + 6 * page_bytes) // page_bytes
    graph_bytes = (12 - 3) * MORE_GRAPH_BYTES
    captured = load_late(pair.path, LateDevice(2 * graph_bytes + (4 << 20) + (200 << 10), 2 << 20), **flags)
    assert captured.num_pages == ((100 << 10) + 6 * page_bytes) // page_bytes < 6 * 6
    with pytest.raises(BootError, match="the KV cache is too small for one request of full length"):
        load_late(pair.path, LateDevice(4 << 20, 4 << 20), **flags, enforce_eager=True)


def test_nothing_is_left_of_the_rehearsal(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache that a full step and the largest graphs were tried with is gone when the real one is made."""
    caches: list[weakref.ref[KVTensors]] = []

    def allocate(*arguments: Any) -> KVTensors:
        assert all(cache() is None for cache in caches)
        cache = allocate_cache(*arguments)
        caches.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(cache_plan, "allocate_cache", allocate)
    load_late(pair.path, LateDevice())
    assert len(caches) == 2


def test_a_full_step_that_does_not_fit_is_a_clear_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(Runner, "run", run_out)
    with pytest.raises(BootError, match=r"a step of 64 tokens does not fit .* 2 GiB\. Lower --max-num-batched-tokens"):
        load_late(pair.path, LateDevice())


@pytest.mark.skipif(DEVICE != "cpu", reason="with a GPU, test_forward_passes_on_gpu.py runs the kernels")
@pytest.mark.parametrize(
    ("variant", "operations"),
    [
        ("qwen3-gqa-tied", {"paged_decode", "paged_prefill", "rotate_store", "take_tokens"}),
        ("youtu", {"latent_decode", "latent_prefill", "store_latents", "take_tokens"}),
    ],
)
def test_tritons_kernels_take_the_plans(
    variant: str, operations: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured decode, prefill and mixed steps through the interpreted kernels, and nothing waits for any of them."""
    monkeypatch.setattr(loading, "plan_warm_ups", lambda *arguments: [])  # seconds in the interpreter
    build_checkpoint(tmp_path, variant, num_hidden_layers=1)
    flags = {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 32, "num_pages": 16}
    cpu = load_runner(make_config(tmp_path, **flags), ignore_report)
    prompts, schedule = [[5, 6, 7], list(range(20))], Schedule(chunk_tokens=15, stagger=1)
    expected = generate(cpu, prompts, 4, schedule, VARIED)
    device = LateDevice(may_wait=False)
    with triton_in_use() as taken:
        gpu = load_late(tmp_path, device, **flags)
        assert generate(gpu, prompts, 4, schedule, VARIED) == expected
    assert device.num_replays == 6
    assert operations <= set(taken)


@pytest.mark.skipif(DEVICE != "cpu", reason="with a GPU, test_forward_passes_on_gpu.py runs the kernel")
def test_the_head_finds_the_tokens_of_greedy_rows_without_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not if a row of the step is drawn or needs logprobs."""
    monkeypatch.setattr(loading, "plan_warm_ups", lambda *arguments: [])
    monkeypatch.setattr(formats, "has_packed_kernel", lambda weight: False)
    build_checkpoint(tmp_path, "qwen3-gqa-tied", num_hidden_layers=1)
    flags = {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 32, "num_pages": 16}
    cpu = load_runner(make_config(tmp_path, **flags), ignore_report)
    logprobs = SamplingParams(12, temperature=0.0, num_logprobs=1)
    expected = [generate(cpu, PROMPTS[:2], 4, params=[VARIED[0], other]) for other in (*VARIED[:2], logprobs)]
    with triton_in_use(fusions=("argmax",)) as taken:
        gpu = load_late(tmp_path, LateDevice(may_wait=False), enforce_eager=True, **flags)
        for other, tokens, num_found in zip((*VARIED[:2], logprobs), expected, (4, 0, 0), strict=True):
            taken.clear()
            assert generate(gpu, PROMPTS[:2], 4, params=[VARIED[0], other]) == tokens
            assert taken["few_rows_linear"] == num_found
            assert taken["greedy"] + taken["draw"] == 4 - num_found


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU prompts are as long as `LONG_STEP_TOKENS` says, in 16 bits")
def test_long_prompts_have_their_kernel_in_layers_without_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other rows in the step, captured and not, and behind what an earlier step has computed."""
    paged_prefill = import_module("kernels.gpu.paged_prefill")
    monkeypatch.setattr(loading, "plan_warm_ups", lambda *arguments: [])
    monkeypatch.setattr(attention_plans, "takes_long_prompts", lambda shape: shape.head_dim == 64)
    for name in ("LONG_STEP_TOKENS", "LONG_ROW_TOKENS"):
        monkeypatch.setattr(prefill_tiles, name, 16)
    calls: list[int] = []

    def attend(query: torch.Tensor, *arguments: Any) -> None:
        calls.append(len(query))
        long_prefill.attend_long_prompts(query, *arguments)

    long_prefill = import_module("kernels.gpu.long_prefill")
    monkeypatch.setattr(paged_prefill, "attend_long_prompts", attend)
    shape = {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    build_checkpoint(tmp_path, "qwen3-gqa-tied", head_dim=64, **shape)
    flags = {"max_num_seqs": 2, "max_num_batched_tokens": 48, "max_model_len": 64, "num_pages": 16}
    prompts = [[5, 6, 7], list(range(50))]
    expected = generate(load_runner(make_config(tmp_path, **flags), ignore_report), prompts, 3, Schedule(30), VARIED)
    for is_eager in (False, True):
        calls.clear()
        with triton_in_use():
            gpu = load_late(tmp_path, LateDevice(may_wait=False), enforce_eager=is_eager, **flags)
            assert generate(gpu, prompts, 3, Schedule(30), VARIED) == expected
        assert calls[-2:] == ([33, 20] if is_eager else [48, 32]), calls
