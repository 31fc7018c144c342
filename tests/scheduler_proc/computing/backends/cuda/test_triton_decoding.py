"""Whole models through the Triton kernels of the kernels: the tokens are those of transformers in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kernels.formats import registry
from kernels.gpu.triton_kernels import list_operations
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import formats
from scheduler_proc.computing.model.attention_description import AttentionDescription
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.kernels.gpu.triton_in_use import DEVICE, triton_in_use
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.loading.adapters.adapter_cases import make_adapter, merge
from tests.scheduler_proc.computing.reference import assert_greedy

NAMES = set(list_operations())
ATTENTION = {"paged_decode", "paged_prefill"} & NAMES
GATED = {"rms_norm", "silu_mul", "rotate_store"}
EXPERTS = {"route_tokens", "gather_rows", "expert_plain_linear", "combine_experts"}
MAMBA = {"short_conv", "mamba_scan", "gated_norm"} & NAMES
LATENT = {"rms_norm", "silu_mul", "store_latents", "latent_decode", "latent_prefill"} & NAMES
OPERATIONS = {
    "gpt2": {"layer_norm", "gelu", "rotate_store"},
    "cohere2": {"layer_norm", "silu_mul", "rotate_store"},
    "gemma2": {"rms_norm", "gelu_mul", "rotate_store"},
    "gemma3": {"rms_norm", "gelu_mul", "rotate_store"},
    **dict.fromkeys(("llama-gqa-tied", "mistral-window", "qwen2-windows", "qwen3-gqa-tied", "olmo2", "olmo3"), GATED),
    **dict.fromkeys(("phi3-long", "smollm3", "granite", "granite4", "glm4", "ministral3", "exaone4"), GATED),
    "gemma4-one-kv": {"rms_norm", "gelu_mul", "rotate_store"},
    "gpt-oss": {"rms_norm", "rotate_store"},
    **dict.fromkeys(("mixtral", "qwen2moe", "qwen3moe", "glm4moe", "dots1", "ernie4-5-moe"), GATED | EXPERTS),
    **dict.fromkeys(("granitemoe", "granitemoe-shared", "olmoe"), GATED | EXPERTS),
    "qwen3_5": GATED | {"short_conv", "gated_delta", "gated_norm", "sigmoid_gate"} & NAMES,
    "lfm2": GATED | {"short_conv"} & NAMES,
    "lfm2moe": GATED | EXPERTS | {"short_conv"} & NAMES,
    "mamba2": {"rms_norm"} | MAMBA,
    "granite4-h": GATED | MAMBA,
    "nemotron-h": {"rms_norm", "rotate_store"} | MAMBA,
    "falcon-h1": GATED | MAMBA,
    "gpt_neox": {"rotate_store"},
    **dict.fromkeys(("deepseek-v2", "deepseek-v3", "glm4-moe-lite", "mistral4"), LATENT | EXPERTS),
    **dict.fromkeys(("youtu", "minicpm3"), LATENT),
}
"""By variant, one of each architecture, and one that transformers computes."""

FORMS = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q5_0", "ffn_": "Q4_1", "": "Q8_0"}
"""By a part of a tensor's name in GGUF."""

ONE_LAYER = {"num_hidden_layers": 1}
TWO_KINDS = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}
FEW_LAYERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2},
    "llama-gqa-tied": {"num_hidden_layers": 2},
    "mistral-window": ONE_LAYER | {"sliding_window": 4},
    "smollm3": {"num_hidden_layers": 2},
    "granite4": ONE_LAYER | {"layer_types": ["full_attention"]},
    "qwen2-windows": TWO_KINDS,
    "mixtral": ONE_LAYER | {"intermediate_size": 20},
    **dict.fromkeys(("granitemoe", "granitemoe-shared", "olmoe"), ONE_LAYER | {"intermediate_size": 20}),
    **dict.fromkeys(("qwen2moe", "qwen3moe"), ONE_LAYER | {"moe_intermediate_size": 20}),
    **dict.fromkeys(("glm4moe", "dots1"), ONE_LAYER | {"moe_intermediate_size": 20, "first_k_dense_replace": 0}),
    **dict.fromkeys(
        ("deepseek-v2", "deepseek-v3", "glm4-moe-lite", "mistral4"),
        ONE_LAYER | {"moe_intermediate_size": 20, "first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]},
    ),
    "ernie4-5-moe": ONE_LAYER | {"moe_intermediate_size": 20, "moe_layer_start_index": 0},
    "qwen3_5": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1]},
    "lfm2moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "moe_intermediate_size": 20},
    "granite4-h": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "nemotron-h": {"layers_block_type": ["mamba", "attention", "mlp"]},
    **dict.fromkeys(("cohere2", "gemma2", "gemma3", "gemma4-one-kv", "gpt-oss", "olmo3", "exaone4"), TWO_KINDS),
}
"""One layer of each kind; windows are shorter than the texts, and the sizes of experts those of plain weights."""

PROMPTS = [[5], [7, 300, 12, 90, 41]]
NUM_TOKENS = 2


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU every test of the runner takes the Triton kernels")
@pytest.mark.parametrize("variant", OPERATIONS)
def test_triton_kernels_give_the_tokens_of_transformers(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks, decode rows with prefill rows, pages in any order. Weights are not packed, as on a GPU."""
    monkeypatch.setattr(formats, "has_packed_kernel", lambda weight: False)
    model = build_checkpoint(tmp_path, variant, **FEW_LAYERS.get(variant, ONE_LAYER))
    runner = load_runner(make_config(tmp_path, block_size=4, num_pages=32), lambda text, fraction: None)
    with triton_in_use() as taken:
        outputs = generate(runner, PROMPTS, NUM_TOKENS, Schedule(chunk_tokens=3, stagger=1, page_size=4))
    attention = ATTENTION if runner._decoder.model.find(AttentionDescription) else set[str]()
    assert OPERATIONS[variant] | attention <= set(taken)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len(output) == NUM_TOKENS
        assert_greedy(model, prompt, output, f"{variant}, prompt of {len(prompt)}")


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU every test of the runner takes the Triton kernels")
def test_few_rows_give_the_tokens_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With norms of heads, biases and windows; heads have a usual size. If a step has prompts, its last layer computes
    only tokens that go to the head, by other kernels."""
    monkeypatch.setattr(formats, "has_packed_kernel", lambda weight: False)
    shape: dict[str, Any] = {"num_hidden_layers": 2, "head_dim": 64, "max_window_layers": 1}
    shape |= {"use_sliding_window": True, "sliding_window": 4}
    model = build_checkpoint(tmp_path, "qwen3-biases-untied", **shape)
    runner = load_runner(make_config(tmp_path, block_size=4, num_pages=32), lambda text, fraction: None)
    with triton_in_use(fusions=("few_rows",)) as taken:
        outputs = generate(runner, PROMPTS, NUM_TOKENS, Schedule(chunk_tokens=3, stagger=1, page_size=4))
    assert taken["few_rows_linear"] > 4 * taken["rotate_store"] > 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert_greedy(model, prompt, output, f"prompt of {len(prompt)}")


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU every test of the runner takes the Triton kernels")
def test_adapters_give_the_tokens_of_the_merged_model(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path / "model", "llama-gqa-tied", **ONE_LAYER)
    runner = load_runner(make_config(tmp_path / "model", block_size=4, num_pages=32, max_loras=2), lambda *_: None)
    case = make_adapter(model, 4)
    runner.place_adapter(1, runner.read_adapter(case.write(tmp_path / "adapter")))
    with triton_in_use() as taken:
        outputs = generate(
            runner, PROMPTS, NUM_TOKENS, Schedule(chunk_tokens=3, stagger=1, page_size=4), adapter_slots=[-1, 1]
        )
    assert "lora_linear" in taken
    for reference, prompt, output in zip((model, merge(model, case)), PROMPTS, outputs, strict=True):
        assert_greedy(reference, prompt, output, f"prompt of {len(prompt)}")


@pytest.mark.skipif(DEVICE != "cpu", reason="the model's values are compared in float32 on a CPU")
def test_weights_in_their_forms_give_the_tokens_of_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q, k and v are of two forms, and have biases."""
    monkeypatch.setattr(registry, "is_on_cpu", lambda device: False)
    model = build_block_model(
        tmp_path, "qwen2-mha-untied", lambda name: next(form for part, form in FORMS.items() if part in name)
    )
    runner = load_runner(make_config(model.path, block_size=4, num_pages=32), lambda text, fraction: None)
    with triton_in_use() as taken:
        (output,) = generate(runner, PROMPTS[1:], NUM_TOKENS, Schedule(chunk_tokens=3, stagger=1, page_size=4))
    assert {"planes_linear", "look_up_planes"} <= set(taken)
    reference = AutoModelForCausalLM.from_pretrained(model.values, dtype=torch.float32)
    assert_greedy(reference, PROMPTS[1], output, "a prompt")
