"""Steps in which all rows decode are made again from C, and give what they gave before."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.cpu.library import find_kernel, load_kernels
from kernels.formats.weight_format import Linear
from kernels.operations.packed_linear import has_packed_kernel
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.backends.cpu.device import CpuDevice
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.kv_cache.kv_tensors import allocate_cache
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading.weights import make_dummy_weights
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.blocks import weights as block_weights
from scheduler_proc.computing.model.blocks.weights import StepLinear
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.gated_delta_description import GatedDeltaDescription
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.runner import Runner, StatePool
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.step.shapes import StepLimits
from tests.checkpoints import VOCAB_SIZE, build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, run_step
from tests.scheduler_proc.computing.test_load_runner import QWEN_CONFIG
from tests.scheduler_proc.test_greedy_tokens import PAGE_SIZE, PLENTY, Recalled, run

PROMPTS = [[5, 6, 7], list(range(40)), [9], [100, 200, 300, 12, 4, 4, 4, 4]]
PARAMS = [SamplingParams(max_tokens=12, temperature=0.9 * (index % 2), seed=index) for index in range(len(PROMPTS))]
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
STAGGERED = Schedule(stagger=2, seed=4)


def load(model_dir: Path, **settings: object) -> Runner:
    return load_runner(make_config(model_dir, **settings), lambda text, fraction: None)


PLAIN = ["gpt2", "llama-gqa-tied", "qwen3-gqa-tied", "gemma2", "gemma3", "olmo3", "cohere2", "exaone4"]
RECURRENT = ["qwen3_5", "lfm2", "nemotron-h", "falcon-h1"]


@pytest.mark.parametrize("variant", PLAIN + RECURRENT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_are_those_of_steps_that_are_not_captured(tmp_path: Path, variant: str, dtype: str) -> None:
    build_checkpoint(tmp_path, variant)
    captured, plain = (load(tmp_path, quantization="int8", dtype=dtype) for _ in range(2))
    if find_kernel("embed", torch.float32) is None:
        pytest.skip("there are no C kernels here")
    compare(captured, plain)


@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_in_blocks_are_captured(tmp_path: Path, variant: str, dtype: str) -> None:
    """Also the table of tokens, which is the head."""
    sizes = {"n_embd": 64, "n_head": 4} if variant == "gpt2" else {"hidden_size": 64, "intermediate_size": 96}
    model = build_block_model(tmp_path, variant, lambda name: "F32" if "position" in name else "Q5_0", **sizes)
    captured, plain = (load(model.path, dtype=dtype) for _ in range(2))
    if find_kernel("block_linear", torch.float32) is None:
        pytest.skip("there are no C kernels here")
    compare(captured, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_linears_are_captured(tmp_path: Path, dtype: torch.dtype) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG | QWEN3), encoding="utf-8")
    captured, plain = (load(tmp_path, load_format="dummy", dtype=str(dtype).removeprefix("torch.")) for _ in range(2))
    if not has_packed_kernel(torch.zeros(64, 64, dtype=dtype)):
        pytest.skip("this processor has no C kernel for such linears")
    compare(captured, plain)


def passes_of(runner: Runner) -> CpuForwardPasses:
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    return runner.forward_passes


def captured_rows(runner: Runner) -> set[int]:
    return {num_rows for _, num_rows in passes_of(runner).captures}


def compare(captured: Runner, plain: Runner) -> None:
    passes_of(plain).can_capture = False
    outputs = [generate(runner, PROMPTS, 12, STAGGERED, PARAMS) for runner in (captured, plain)]
    assert outputs[0] == outputs[1]
    assert generate(captured, PROMPTS, 12, STAGGERED, PARAMS) == outputs[0]
    assert captured_rows(captured) == {1, 2, 3, 4}
    assert not passes_of(plain).captures


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_with_prompts_repeat_the_calls_of_a_layer(tmp_path: Path, dtype: torch.dtype, quantization: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG | QWEN3 | {"num_hidden_layers": 5}), encoding="utf-8")
    flags = {"load_format": "dummy", "dtype": str(dtype).removeprefix("torch."), "quantization": quantization}
    repeating, plain = (load(tmp_path, **flags) for _ in range(2))
    if quantization == "none" and not has_packed_kernel(torch.zeros(64, 64, dtype=dtype)):
        pytest.skip("this processor has no C kernel for such linears")
    passes_of(plain).repeats = None
    for _ in range(2):
        outputs = [generate(runner, PROMPTS, 12, STAGGERED, PARAMS) for runner in (repeating, plain)]
        assert outputs[0] == outputs[1]
    repeats = passes_of(repeating).repeats
    assert repeats is not None
    assert {"paged_decode" in names for *_, names in repeats.known} == {False, True}
    assert all(repeats.known.values())


def load_described(model: ModelDescription) -> Runner:
    """Returns a runner of random int8 weights."""
    load_kernels(lambda text, fraction: None)
    placement = Placement(torch.device("cpu"), torch.float32, quantization="int8")
    weights = make_dummy_weights(Shard(model), placement, lambda text, fraction: None)
    decoder, device = DescribedDecoder(model, weights, 96), CpuDevice()
    features = frozenset({"states"} if model.has_states else ())
    limits, states = StepLimits(8, 64, 6, features=features), StatePool(8, 1)
    cache = allocate_cache(model, 64, 16, placement, num_states=states.num_slots)
    passes = CpuForwardPasses(decoder, cache, device, limits)
    return Runner(decoder, device, passes, limits, cache.num_pages, states=states)


def alternating_model() -> ModelDescription:
    """Two kinds of layers whose MLPs differ in size and bias, in an order without a period."""
    norm = NormDescription(kind="rms", size=64, eps=1e-5)
    attention = AttentionDescription(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
    mlps = [DenseMlpDescription(size=size, activation="silu_gated", has_bias=size == 96) for size in (96, 160)]
    layers = [
        LayerDescription(attention_norm=norm, mixers=(attention,), mlp_norm=norm, mlp=mlps[kind])
        for kind in (0, 1, 0, 1, 1, 0, 0, 1)
    ]
    return ModelDescription(vocab_size=VOCAB_SIZE, hidden_size=64, layers=tuple(layers), final_norm=norm)


def hybrid_model() -> ModelDescription:
    """Three of four layers are recurrent."""
    norm = NormDescription(kind="rms", size=64, eps=1e-5)
    delta = GatedDeltaDescription(
        num_key_heads=2, num_value_heads=4, key_size=16, value_size=32, num_taps=4, norm_eps=1e-5
    )
    mlp = DenseMlpDescription(size=96, activation="silu_gated")
    recurrent = LayerDescription(attention_norm=norm, mixers=(delta,), mlp_norm=norm, mlp=mlp)
    attention = AttentionDescription(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
    attending = replace(recurrent, mixers=(attention,))
    layers = (*[recurrent] * 3, attending) * 3
    return ModelDescription(vocab_size=VOCAB_SIZE, hidden_size=64, layers=layers, final_norm=norm)


def test_linears_of_a_captured_step_see_the_columns_of_each_later_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a linear is given when a step is captured holds the tokens of the steps that are replayed."""
    seen: list[StepRows] = []

    def of_step(_name: str, linear: Linear, *_activation: object) -> StepLinear:
        def apply(x_TI: torch.Tensor, rows: StepRows, out_TO: torch.Tensor | None = None, /) -> torch.Tensor:
            seen.append(rows)
            return linear(x_TI, out_TO)

        return apply

    monkeypatch.setattr(block_weights, "_of_step", of_step)
    runner = load_described(alternating_model())
    if find_kernel("embed", torch.float32) is None:
        pytest.skip("there are no C kernels here")
    row = Row(0, [7], 1, pages=[3])
    run_step(runner, 0, [(row, 1)], 16)
    assert len(seen) == 4 * 8
    for step_id in range(1, 4):
        run_step(runner, step_id, [(row, 1)], 16)
        assert len(seen) == 4 * 8, "the step is replayed"
        for rows in seen:
            assert rows.select(rows.step.token_ids).tolist() == [row.ids[step_id]]
            assert rows.select(rows.step.positions).tolist() == [step_id]


def test_linears_of_the_last_layer_see_the_tokens_that_go_to_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def of_step(_name: str, linear: Linear, *_activation: object) -> StepLinear:
        def apply(x_TI: torch.Tensor, rows: StepRows, out_TO: torch.Tensor | None = None, /) -> torch.Tensor:
            assert len(rows.select(rows.step.token_ids)) == len(x_TI)
            seen.append(rows.select(rows.step.token_ids).tolist())
            return linear(x_TI, out_TO)

        return apply

    monkeypatch.setattr(block_weights, "_of_step", of_step)
    runner = load_described(alternating_model())
    run_step(runner, 0, [(Row(0, [7, 8, 9], 3, pages=[3]), 3)], 16)
    assert seen == [[7, 8, 9]] * (4 * 7 + 1) + [[9]] * 3


@pytest.mark.parametrize(("model", "computed"), [(alternating_model(), [2]), (hybrid_model(), [3])])
def test_layers_of_two_kinds_are_captured_and_repeated(model: ModelDescription, computed: list[int]) -> None:
    captured, plain = (load_described(model) for _ in range(2))
    if find_kernel("embed", torch.float32) is None:
        pytest.skip("there are no C kernels here")
    passes_of(plain).repeats = None
    compare(captured, plain)
    repeats = passes_of(captured).repeats
    assert repeats is not None
    programs = [program for program in repeats.known.values() if program is not None]
    assert len(programs) == len(repeats.known) > 0
    for program in programs:
        assert [step for step in program.steps if isinstance(step, int)] == computed, (
            "one layer of each kind is computed"
        )


@pytest.mark.parametrize("variant", ["gpt2", "qwen3_5"])
def test_steps_with_draft_tokens_are_replayed_and_give_the_same_tokens(tmp_path: Path, variant: str) -> None:
    build_checkpoint(tmp_path, variant)
    runner = load(tmp_path, quantization="int8", block_size=PAGE_SIZE, num_pages=PLENTY)
    expected, _ = run(runner, PROMPTS, PLENTY, 4096, max_tokens=40, temperature=0.7)
    plain = captured_rows(runner)
    drafter = Recalled(expected)
    outputs, _ = run(runner, PROMPTS, PLENTY, 4096, drafter, max_tokens=40, temperature=0.7)
    assert outputs == expected
    assert min(drafter.num_right, drafter.num_wrong) > 5
    if find_kernel("embed", torch.float32) is not None:
        assert max(captured_rows(runner)) > max(plain) == len(PROMPTS)


def test_what_torch_computes_is_not_captured(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    runner = load(tmp_path, dtype="float32")
    first = generate(runner, PROMPTS, 12, STAGGERED, PARAMS)
    assert not passes_of(runner).can_capture
    assert generate(runner, PROMPTS, 12, STAGGERED, PARAMS) == first


def test_a_step_that_requests_more_than_tokens_of_all_its_rows_is_not_replayed(tmp_path: Path) -> None:
    """Logprobs come of the same logits; steps with logprobs of prompts go another way."""
    build_checkpoint(tmp_path, "gpt2")
    runner = load(tmp_path, quantization="int8")
    wanting = [
        SamplingParams(max_tokens=6, temperature=0.0, num_logprobs=2),
        SamplingParams(max_tokens=6, temperature=0.0, num_prompt_logprobs=1),
    ]
    together = generate(runner, PROMPTS[:2], 6, params=wanting)
    assert [generate(runner, [prompt], 6)[0] for prompt in PROMPTS[:2]] == together
