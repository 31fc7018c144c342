"""Experts in the host's memory (`--cpu-experts`): they change no token, and the host waits for copies."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from kernels.arguments.block_rows import BlockRows
from kernels.cpu.library import load_kernels
from messages.config.server import Config
from messages.control.admin import ProcessInfo, ProcessList
from messages.errors import BootError
from scheduler_proc.computing.backends.backend import Place
from scheduler_proc.computing.backends.cuda import host_parts
from scheduler_proc.computing.backends.cuda.backend import CudaBackend
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import expert_placement
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.loading.weights import ShardWeights
from scheduler_proc.computing.model.blocks import expert_mlp
from scheduler_proc.computing.model.expert_description import find_host_layers, on_host
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.step.shapes import StepLimits
from supervisor.cli.show import memory_text
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_models import small_blocks
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, LateEvent
from tests.scheduler_proc.computing.backends.cuda.taped_device import TapedDevice, taped_graphs
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import (
    FLAGS,
    PROMPTS,
    VARIED,
    ignore_report,
    load_late,
)
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.model.families.test_experts import QWEN3_MOE, read

MIXED = Schedule(chunk_tokens=7, stagger=1, seed=5)
"""Chunks of prompts, decode rows, and both in one step."""

NUM_TOKENS = 6

SHARED = ("qwen2moe", "deepseek-v3")
"""Variants with a shared expert, which the GPU computes meanwhile."""

ALONE = ("qwen3moe", "gpt-oss", "gemma4-experts")


class Model(NamedTuple):
    path: Path
    tokens: list[list[int]]
    """What the CPU generates."""


Models = Callable[[str], Model]
"""Takes the name of a variant."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    if load_kernels(ignore_report) is None:
        pytest.skip("there are no C kernels here")

    @cache
    def make(variant: str) -> Model:
        path = tmp_path_factory.mktemp(variant)
        build_checkpoint(path, variant)
        return Model(path, run(load_runner(make_config(path, **FLAGS), ignore_report)))

    return make


@pytest.fixture
def model(models: Models) -> Model:
    return models("qwen2moe")


def run(runner: Runner) -> list[list[int]]:
    return generate(runner, PROMPTS[:5], NUM_TOKENS, MIXED, VARIED)


def count_host_layers(runner: Runner) -> int:
    return len(find_host_layers(runner._decoder.model.layers))


@pytest.mark.parametrize("variant", [*SHARED, *ALONE])
def test_tokens_are_those_of_the_cpu(variant: str, models: Models) -> None:
    """Steps of decode rows are captured in pieces, and replayed on the memory of their captures."""
    model, device = models(variant), TapedDevice()
    with taped_graphs():
        runner = load_late(model.path, device, cpu_experts="all")
    num_before, num_layers = device.num_works, count_host_layers(runner)
    assert num_layers >= 1
    assert run(runner) == model.tokens
    assert device.num_replays > 2
    per_layer = 2 if variant in SHARED else 1
    assert device.num_works - num_before >= per_layer * num_layers * (device.num_replays + 1)


@pytest.mark.parametrize(("asked", "num_layers"), [("2", 2), ("9", 3), ("0", 0)])
def test_some_first_layers_have_experts_on_the_host(model: Model, asked: str, num_layers: int) -> None:
    runner = load_late(model.path, LateDevice(), cpu_experts=asked)
    assert count_host_layers(runner) == num_layers
    assert run(runner) == model.tokens
    assert runner.can_overlap == (num_layers == 0)


def test_without_graphs(model: Model) -> None:
    runner = load_late(model.path, LateDevice(), cpu_experts="all", enforce_eager=True)
    assert run(runner) == model.tokens


def test_in_16_bits_the_host_computes_what_the_device_would(models: Models) -> None:
    """Without a shared expert the sums are the same."""
    path, flags = models("qwen3moe").path, {"dtype": "bfloat16", "enforce_eager": True}
    on_device, on_host = (run(load_late(path, LateDevice(), cpu_experts=asked, **flags)) for asked in ("none", "all"))
    assert on_host == on_device


def test_quantized_on_the_host_alone(models: Models) -> None:
    """Other weights are those of the checkpoint."""
    path, device = models("qwen3moe").path, TapedDevice()
    eager = load_late(path, LateDevice(), cpu_experts="all", quantization="int8", enforce_eager=True)
    kinds = eager._decoder.layer_kinds
    assert {name for _, names in kinds for name in names} == {"plain", "packed", "packed blocks"}
    assert all(names.count("packed blocks") == 2 for _, names in kinds)
    with taped_graphs():
        captured = load_late(path, device, cpu_experts="all", quantization="int8")
    assert run(captured) == run(eager)
    assert device.num_replays > 2


@pytest.mark.parametrize("variant", ["qwen2moe", "qwen3moe"])
@pytest.mark.parametrize("name", ["record", "synchronize"])
def test_the_stand_in_shows_an_event_that_is_not_waited_for(
    variant: str, name: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models(variant)
    runner = load_late(model.path, LateDevice(), cpu_experts="all", enforce_eager=True)
    monkeypatch.setattr(LateEvent, name, lambda self: None)
    assert run(runner) != model.tokens


def test_the_stand_in_shows_memory_that_is_written_while_it_is_copied(model: Model) -> None:
    device = LateDevice()
    host, event = device.allocate_host(4), device.new_event()
    device.copy_in(host)
    event.synchronize()
    host += 1
    device.copy_in(host)
    host += 1
    with pytest.raises(AssertionError, match="memory was written while it was copied"):
        event.synchronize()


def test_while_models_are_loaded_the_host_computes_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full step and the warm-ups would take it minutes."""
    calls = list[int]()
    compute = expert_mlp.Block._compute_on_host

    def count(block: Any, room: Any) -> None:
        calls.append(len(room.normed))
        compute(block, room)

    monkeypatch.setattr(expert_mlp.Block, "_compute_on_host", count)
    runner = load_late(model.path, LateDevice(), cpu_experts="all", num_pages=None)
    assert not calls
    generate(runner, PROMPTS[:1], 2)
    assert calls == [3, 3, 1, 1, 1, 1]  # the last layer computes only the head's token


def test_calls_of_c_kernels_are_captured_once_for_each_layer_and_shape(model: Model) -> None:
    device = TapedDevice()
    with taped_graphs():
        runner = load_late(model.path, device, cpu_experts="all")
    captured, capture_calls = list[object](), host_parts.capture_calls

    def count(compute: Any) -> Any:
        result, calls, other = capture_calls(compute)
        captured.append(calls)
        return result, calls, other

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_parts, "capture_calls", count)
        generate(runner, PROMPTS[:1], 6)
    assert len(captured) == 3
    assert None not in captured


class FreeMemory(CudaBackend):
    """A GPU of which nothing is known but the bytes that are free."""

    num_bytes = 0

    def free_bytes(self, config: Config, placement: Placement) -> int:
        return self.num_bytes


def test_auto_leaves_as_many_experts_on_the_gpu_as_fit(model: Model) -> None:
    """Down to the byte, until one request of full length does not fit next to the other weights."""
    config, whole, backend = make_config(model.path, cpu_experts="auto"), read(QWEN3_MOE)[1], FreeMemory()
    target = Target(backend, Place(1), Placement(torch.device("cpu"), torch.bfloat16), StepLimits(2, 16, 6))
    layers = whole.layers
    placed = [
        replace(whole, layers=(*map(on_host, layers[:number]), *layers[number:])) for number in range(len(layers) + 1)
    ]
    needs = [expert_placement._device_bytes(config, one, target, {}) for one in placed]
    for number, num_bytes in enumerate(needs):
        backend.num_bytes = num_bytes
        found, _ = expert_placement.place_experts(config, whole, target, dict)
        assert len(find_host_layers(found.layers)) == number
    backend.num_bytes = needs[-1] - 1
    with pytest.raises(BootError, match=r"--cpu-experts auto: without any experts, the GPU still needs 1\.00 GiB"):
        expert_placement.place_experts(config, whole, target, dict)


def test_too_little_memory_of_the_host_is_refused_with_numbers(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_placement, "available_memory_bytes", lambda *_: 1000)
    with pytest.raises(BootError, match=r"the experts of 3 layers take 0\.00 GiB of the host's memory, and 0\.00 GiB"):
        load_late(model.path, LateDevice(), cpu_experts="all")


def test_experts_are_read_in_the_forms_of_the_hosts_kernels() -> None:
    """In blocks as in the file, or packed; the router is where the model is."""
    _, whole = read(QWEN3_MOE | {"hidden_size": 256, "moe_intermediate_size": 32})
    placed = replace(whole, layers=tuple(map(on_host, whole.layers)))
    loaded = ShardWeights(Shard(placed, 0, 1), Placement(torch.device("meta"), torch.float32))
    for number, (linear, num_inputs) in enumerate((("in", 256), ("out", 32))):
        name = f"layers.0.experts_{linear}.weight"
        num_rows = loaded.parts[name].shape[0]
        pieces: list[BlockRows | torch.Tensor] = [torch.ones(num_rows, num_inputs)]
        loaded.add(name, [small_blocks("Q4_K", num_rows, 256, 1)] if number == 0 else pieces)
    loaded.add("layers.0.router.weight", [torch.ones(loaded.parts["layers.0.router.weight"].shape)])
    weights = loaded.finished()
    assert next(iter(weights)) == "layers.0.router.weight"
    assert [weight.format.name for weight in weights.values()] == ["plain", "packed blocks", "packed"]
    assert [weight.stored.device.type for weight in weights.values()] == ["meta", "cpu", "cpu"]


def test_memory_of_the_host_is_shown(model: Model) -> None:
    placement = load_late(model.path, LateDevice(), cpu_experts="1").placement
    assert placement["cpu_experts"] == "1 of 3 layers, 0.00 GiB"
    process = {**dict.fromkeys(ProcessInfo.__struct_fields__), "name": "scheduler", "gauges": {}}
    server = ProcessList(processes=(ProcessInfo(**process | {"placement": placement}),))
    assert "in the host's memory: experts of 1 of 3 layers, 0.00 GiB" in memory_text(server)
    assert "cpu_experts" not in load_late(model.path, LateDevice(), cpu_experts="0").placement


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"cpu_experts": "all", "tensor_parallel": 2}, "--cpu-experts: several ranks have no experts in the host's"),
        ({"cpu_experts": "all", "deterministic": True}, "--deterministic: --cpu-experts computes with kernels of"),
    ],
)
def test_flags_that_exclude_each_other_are_refused(model: Model, flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(BootError, match=reason):
        CudaBackend().check_model(make_config(model.path, **flags), Shard(read(QWEN3_MOE)[1]).own)


def test_what_the_host_cannot_have_is_refused(model: Model, tmp_path: Path) -> None:
    no_experts = tmp_path / "no_experts"
    with pytest.raises(BootError, match="--cpu-experts: on a CPU all weights are in the host's memory"):
        load_runner(make_config(model.path, cpu_experts="all"), ignore_report)
    with pytest.raises(BootError, match="--cpu-experts: transformers' code has its experts on the GPU"):
        CudaBackend().check_model(make_config(model.path, cpu_experts="1"), None)
    with pytest.raises(BootError, match="--cpu-experts all: the host computes no float16; take --dtype bfloat16"):
        load_late(model.path, LateDevice(), cpu_experts="all", dtype="float16")
    build_checkpoint(no_experts, "llama-mqa")
    with pytest.raises(BootError, match=r"--cpu-experts auto: .* has no experts; leave the flag out"):
        load_late(no_experts, LateDevice(), cpu_experts="auto")
