"""A model of each kind of layer, weight and state that has never run on a GPU has the results of a CPU, a line each.

Without a GPU its stand-in computes the first case of each test, with torch in place of kernels.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kernels.formats import plain, registry
from messages.columns import unpack_float32
from messages.config.server import Config, ModelConfig
from messages.ring.requests import Pooling
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from supervisor.model.facts import read_model_facts
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.scheduler_proc.clients import user_msg
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend, no_triton
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import FLAGS, PROMPTS, VARIED, ignore_report
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.loading.adapters.adapter_cases import make_adapter
from tests.scheduler_proc.computing.loading.quantized.quantized_models import METHODS, SIZES, build_quantized
from tests.scheduler_proc.computing.test_load_runner import mean_logprob
from tests.scheduler_proc.computing.vision import towers
from tests.scheduler_proc.test_pooling import run as pool
from tests.tiny_bert import write_tiny_bert
from tests.vision_models import make_vision_model

HAS_GPU = torch.cuda.is_available()
MIXED = Schedule(chunk_tokens=7, stagger=1, seed=5)
"""Chunks of prompts, decode rows, and both in one step."""

IDS = list(range(60))
NUM_TOKENS = 8
SIZES_OF: dict[str, dict[str, Any]] = {
    "llama-mha": {},
    "qwen3moe": {"moe_intermediate_size": 128, "num_experts": 8, "head_dim": 32},
}
"""What `build_quantized` is to change, so that inputs of linears are whole groups and outputs whole words."""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights have the formats of a GPU also on its stand-in."""
    for module in () if HAS_GPU else (registry, plain):
        monkeypatch.setattr(module, "is_on_cpu", lambda device: False)


def load(path: Path, **flags: object) -> Runner:
    """Loads the model on a GPU, with all kernels, or on the stand-in."""
    return load_config(make_config(path, **FLAGS | flags | ({"device": "cuda"} if HAS_GPU else {})))


def load_config(config: Config) -> Runner:
    if not HAS_GPU:
        with late_backend(LateDevice, no_triton):
            return load_runner(config, ignore_report)
    runner = load_runner(config, ignore_report)
    assert runner.degraded == ""
    return runner


def load_on_cpu(path: Path, **flags: object) -> Runner:
    return load_runner(make_config(path, **FLAGS | flags), ignore_report)


def first_of(name: str, values: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrizes a test; without a GPU by the first value."""
    first, *others = values
    skips = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
    return pytest.mark.parametrize(name, [first, *(pytest.param(each, marks=skips) for each in others)])


KINDS: dict[str, dict[str, Any]] = {
    "qwen2-windows": {},
    "gemma3": {},
    "gemma2": {},
    "phi3-long": {},
    "gemma4-one-kv": {"head_dim": 256, "global_head_dim": 512},
    "qwen3_5": {},
    "lfm2": {},
    "mamba2": {},
    "granite4-h": {},
    "nemotron-h": {},
    "falcon-h1": {},
    "mixtral": {},
    "qwen3moe": {},
    "gpt-oss": {},
    "gemma4-experts": {},
}
"""Windows; heads of 512; gated delta rule, short convolutions, Mamba-2, alone and next to attention; experts."""


@first_of("variant", KINDS)
def test_tokens_in_float32(variant: str, tmp_path: Path) -> None:
    build_checkpoint(tmp_path, variant, **KINDS[variant])
    expected = generate(load_on_cpu(tmp_path), PROMPTS, NUM_TOKENS, MIXED, VARIED)
    assert generate(load(tmp_path), PROMPTS, NUM_TOKENS, MIXED, VARIED) == expected


@first_of("variant", ["gpt2", "mixtral", "qwen2moe", "qwen3moe", "youtu"])
def test_16_bits_are_near_float32(variant: str, tmp_path: Path) -> None:
    build_checkpoint(tmp_path, variant)
    assert_near(load(tmp_path, dtype="bfloat16"), load_on_cpu(tmp_path), 0.05)


@first_of("method", METHODS)
@first_of("variant", SIZES_OF)
def test_quantized_checkpoints_are_near_their_values(variant: str, method: str, tmp_path: Path) -> None:
    """With experts in planes of codes."""
    quantized, values = tmp_path / "quantized", tmp_path / "values"
    quantized.mkdir()
    values.mkdir()
    build_quantized(quantized, values, method, variant, SIZES | SIZES_OF[variant])
    assert_near(load(quantized), load_on_cpu(values), 2e-3)


@first_of("form", ["Q4_K", "Q6_K", "Q8_0", "MXFP4", "IQ4_XS"])
def test_blocks_of_gguf_are_near_their_values(form: str, tmp_path: Path) -> None:
    model = build_block_model(tmp_path, "llama-mha", lambda name: form)
    assert_near(load(model.path), load_on_cpu(model.values), 2e-3)


def test_weights_rounded_to_fp8_are_near_the_model(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "qwen3-gqa-tied")
    assert_near(load(tmp_path, quantization="fp8"), load_on_cpu(tmp_path), 0.05)


def assert_near(runner: Runner, exact: Runner, most: float) -> None:
    difference = abs(mean_logprob(runner, IDS) - mean_logprob(exact, IDS))
    print(f"{difference:.2e} nats")
    assert difference < most


@first_of("variant", ["qwen2moe", "gpt-oss"])
def test_experts_in_host_memory(variant: str, tmp_path: Path) -> None:
    build_checkpoint(tmp_path, variant)
    expected = generate(load_on_cpu(tmp_path), PROMPTS, NUM_TOKENS, MIXED, VARIED)
    assert generate(load(tmp_path, cpu_experts="all"), PROMPTS, NUM_TOKENS, MIXED, VARIED) == expected


def test_adapters(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path / "model", "llama-mqa")
    flags = {"max_loras": 2, "max_lora_rank": 4}
    runners = load_on_cpu(tmp_path / "model", **flags), load(tmp_path / "model", **flags)
    for slot in range(2):
        path = make_adapter(model, 4 - slot, seed=slot).write(tmp_path / str(slot))
        for runner in runners:
            runner.place_adapter(slot, runners[0].read_adapter(path))
    slots = [0, -1, 1, -1, 1, 0]
    expected, found = (generate(runner, PROMPTS, NUM_TOKENS, MIXED, VARIED, slots) for runner in runners)
    assert found == expected


def test_an_encoder_of_text(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path)
    pooling = Pooling("embed", way="mean", normalizes=True, is_whole=True)
    requests = [user_msg(uid, list(range(1, 8 + 9 * uid)), 0, pooling=pooling) for uid in range(6)]

    def vectors(load: Callable[[Config], Runner], **flags: object) -> dict[int, bytes]:
        facts = read_model_facts(ModelConfig(), tmp_path, tmp_path, "bert")
        config = make_config(tmp_path, block_size=4, num_pages=400, **flags)
        return pool(load(msgspec.structs.replace(config, facts=facts)), requests, 400, 256)[0]

    expected = vectors(lambda config: load_runner(config, ignore_report))
    found = vectors(load_config, **({"device": "cuda"} if HAS_GPU else {}))
    for uid, values in found.items():
        torch.testing.assert_close(*(torch.tensor(unpack_float32(each)) for each in (values, expected[uid])))


@first_of("family", ["idefics3", "internvl"])
def test_a_vision_tower(family: str, tmp_path: Path) -> None:
    model_dir = make_vision_model(family, tmp_path / "model")
    views, layout = towers.random_views((32, 32)), towers.layout_of(4)
    expected, found = (
        towers.load(family, model_dir, device=device).encode(views, layout).cpu()
        for device in ("cpu", "cuda" if HAS_GPU else "cpu")
    )
    assert towers.distance(found, expected) < 1e-4
