"""Mixtures of experts against those of transformers: Qwen3-MoE, Qwen2-MoE, Mixtral and gpt-oss."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from kernels.arguments.routes import Routing
from kernels.cpu.library import load_kernels
from kernels.formats.plain import PlainWeight
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.experts import route_tokens
from messages.errors import BootError
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading.weights import ShardWeights
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import CONTEXT, VOCAB_SIZE, make_config
from tests.kernels.gpu.plausible_blocks import plausible_rows
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.model.families.configs import LLAMA, QWEN3, check_sources, read
from tests.scheduler_proc.computing.model.test_decoder import our_logits

QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}
QWEN2_MOE = QWEN3_MOE | {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 28}
GLM4_MOE = LLAMA | {
    "architectures": ["Glm4MoeForCausalLM"],
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "attention_bias": True,
    "use_qk_norm": True,
}
DOTS1 = GLM4_MOE | {"architectures": ["Dots1ForCausalLM"], "n_shared_experts": 2}
OLMOE = LLAMA | {"architectures": ["OlmoeForCausalLM"], "num_experts": 3, "num_experts_per_tok": 2}
GRANITE_MOE = LLAMA | {"architectures": ["GraniteMoeSharedForCausalLM"], "num_local_experts": 3}
GRANITE_SHARED = GRANITE_MOE | {"shared_intermediate_size": 20}
ERNIE_MOE = LLAMA | {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "moe_num_experts": 3,
    "moe_k": 2,
    "moe_intermediate_size": 12,
    "tie_word_embeddings": False,
}
MIXTRAL = LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 3}
PROMPTS = [[5, 6, 7], list(range(40)), [9], [100, 200, 300, 12, 4, 4, 4, 4]]
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN_SIZES = SIZES | {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3}
HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 32}
HYBRID |= {"full_attention_interval": 3, "head_dim": 24}
EIGHT = SIZES | {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "qwen3": transformers.Qwen3MoeConfig(**QWEN_SIZES, head_dim=24),
    "qwen3, dense layers": transformers.Qwen3MoeConfig(
        **QWEN_SIZES, head_dim=24, norm_topk_prob=True, mlp_only_layers=[1]
    ),
    "qwen3, each second layer": transformers.Qwen3MoeConfig(**QWEN_SIZES, head_dim=24, decoder_sparse_step=2),
    "qwen3, uneven experts": transformers.Qwen3MoeConfig(**QWEN_SIZES | {"moe_intermediate_size": 20}, head_dim=24),
    "qwen2": transformers.Qwen2MoeConfig(**QWEN_SIZES, shared_expert_intermediate_size=160),
    "glm4": transformers.Glm4MoeConfig(
        **EIGHT, head_dim=24, attention_bias=True, use_qk_norm=True, routed_scaling_factor=1.5, n_shared_experts=2
    ),
    "glm4, groups": transformers.Glm4MoeConfig(**EIGHT, n_group=4, topk_group=2, norm_topk_prob=False),
    "dots1": transformers.Dots1Config(**EIGHT, n_shared_experts=1, norm_topk_prob=True, first_k_dense_replace=2),
    "ernie4.5": transformers.Ernie4_5_MoeConfig(
        **SIZES, moe_intermediate_size=32, moe_num_experts=8, moe_k=3, moe_layer_start_index=1, moe_layer_end_index=2
    ),
    "granite": transformers.GraniteMoeConfig(
        **SIZES, num_local_experts=8, num_experts_per_tok=3, residual_multiplier=0.22, attention_multiplier=0.1
    ),
    "granite, shared": transformers.GraniteMoeSharedConfig(
        **SIZES, num_local_experts=8, shared_intermediate_size=160, embedding_multiplier=12.0, logits_scaling=6.0
    ),
    "qwen3.5": transformers.Qwen3_5MoeTextConfig(**QWEN_SIZES, **HYBRID, shared_expert_intermediate_size=160),
    "qwen3-next": transformers.Qwen3NextConfig(
        **QWEN_SIZES, **HYBRID, shared_expert_intermediate_size=160, decoder_sparse_step=2, norm_topk_prob=False
    ),
    "olmoe": transformers.OlmoeConfig(**SIZES, num_experts=8, num_experts_per_tok=3),
    "mixtral": transformers.MixtralConfig(**SIZES, head_dim=24, num_local_experts=8, sliding_window=None),
    "gemma4": transformers.Gemma4TextConfig(
        **QWEN_SIZES | {"num_experts_per_tok": None},
        head_dim=16,
        global_head_dim=32,
        sliding_window=9,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        top_k_experts=3,
        final_logit_softcapping=30.0,
        attention_k_eq_v=True,
    ),
    "gpt-oss": transformers.GptOssConfig(
        **SIZES, head_dim=64, num_local_experts=8, num_experts_per_tok=3, sliding_window=9, swiglu_limit=1.5
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param], dtype=torch.float32)
    generator = torch.Generator().manual_seed(17)
    corrections = [buffer for name, buffer in made.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for parameter in [*made.parameters(), *corrections]:
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2, generator=generator)
    path = tmp_path_factory.mktemp("moe")
    made.save_pretrained(path)
    return made.eval(), path


def test_logits_are_those_of_transformers(model: tuple[Any, Path]) -> None:
    theirs, path = model
    with torch.inference_mode():
        expected = torch.stack([theirs(torch.tensor([prompt])).logits[0, -1] for prompt in PROMPTS])
    ours = our_logits(make_config(path, dtype="float32"), PROMPTS)
    assert float((ours - expected).abs().max() / expected.std()) < 1e-4


def test_fused_experts_are_those_of_each(model: tuple[Any, Path], tmp_path: Path) -> None:
    """transformers 5 holds the experts of a layer in two tensors, and can save them so."""
    theirs, path = model
    theirs.save_pretrained(tmp_path, save_original_format=False)
    names = load_file(tmp_path / "model.safetensors").keys()
    if "granite" in theirs.config.model_type:
        pytest.skip("its checkpoints are fused, under other names")
    assert any(name.endswith("experts.gate_up_proj") for name in names)
    assert not any("experts.0." in name for name in names)
    of_each, fused = (our_logits(make_config(each, dtype="float32"), PROMPTS) for each in (path, tmp_path))
    assert torch.equal(of_each, fused)


def test_tokens_are_those_of_transformers_in_any_schedule(model: tuple[Any, Path]) -> None:
    """Chunks, decode rows and both; decode steps are captured, unless the sizes of experts are uneven."""
    theirs, path = model
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected: list[list[int]] = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
        expected.append(output[0, len(prompt) :].tolist())
    runner = load_runner(make_config(path, dtype="float32"), lambda text, fraction: None)
    for schedule in (Schedule(), Schedule(chunk_tokens=7, stagger=1, seed=5)):
        assert generate(runner, PROMPTS, 8, schedule) == expected
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    assert runner.forward_passes.can_capture == (getattr(theirs.config, "moe_intermediate_size", 0) != 20)


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"quantization": "int4"}, {"dtype": "bfloat16"}])
def test_twelve_requests_are_those_of_each_alone(model: tuple[Any, Path], options: dict[str, Any]) -> None:
    """Routes, products and sums of a token are the same bits in any batch.

    Alone, a prompt of one token is computed as a decode row, whose attention rounds in another order.
    """
    runner = load_runner(make_config(model[1], **options), lambda text, fraction: None)
    prompts = [prompt[: 2 + index] for index in range(4) for prompt in PROMPTS if len(prompt) > 1]
    together = generate(runner, prompts, 8)
    assert [generate(runner, [prompt], 8)[0] for prompt in prompts] == together


@pytest.mark.parametrize(
    "fields",
    [
        QWEN3_MOE,
        QWEN3_MOE | {"mlp_only_layers": [0]},
        QWEN3_MOE | {"num_experts": None, "num_local_experts": 3},
        QWEN2_MOE,
        MIXTRAL,
        *(GLM4_MOE, DOTS1, OLMOE, GRANITE_MOE, GRANITE_SHARED, ERNIE_MOE),
    ],
)
def test_sources_fill_every_element_of_every_parameter_once(fields: dict[str, Any]) -> None:
    check_sources(fields)


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(BootError, match="num_experts_per_tok is 6: there are 5 experts"):
        read(QWEN3_MOE | {"num_experts_per_tok": 6})
    with pytest.raises(BootError, match="2000 experts: supported are 1024"):
        read(MIXTRAL | {"num_local_experts": 2000})
    with pytest.raises(BootError, match="1 of 4 groups cannot be chosen of 6 experts"):
        read(GLM4_MOE | {"n_group": 4})
    with pytest.raises(BootError, match="the groups chosen have 1 experts, not 2"):
        read(GLM4_MOE | {"n_group": 6})
    with pytest.raises(BootError, match="clip_qkv is"):
        read(OLMOE | {"clip_qkv": 8.0})
    with pytest.raises(BootError, match="use_bias is true"):
        read(ERNIE_MOE | {"use_bias": True})
    with pytest.raises(BootError, match=r"layer_types is .*: supported is full_attention"):
        read(DOTS1 | {"layer_types": ["full_attention", "sliding_attention"]})
    with pytest.raises(BootError, match='mlp_only_layers must be a list of indices, not "all"'):
        read(QWEN3_MOE | {"mlp_only_layers": "all"})
    with pytest.raises(BootError, match="--tensor-parallel 2: it does not divide the model's 13 inner values"):
        Shard(read(QWEN3_MOE | {"moe_intermediate_size": 13})[1], 0, 2)


@pytest.mark.parametrize("forms", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K")])
def test_experts_in_blocks_are_one_weight(forms: tuple[str, str]) -> None:
    """In the form of the file if all of them have the same; else their values are packed. The outputs are the same."""
    if load_kernels(lambda text, fraction: None) is None:
        pytest.skip("no C compiler")
    _, model = read(QWEN3_MOE | {"hidden_size": 256, "moe_intermediate_size": 32})
    loaded = ShardWeights(Shard(model, 0, 1), Placement(torch.device("cpu"), torch.float32))
    pieces = [plausible_rows(forms[index % 2], 32, 256) for index in range(10)]  # a gate and an up of each expert
    loaded.add("layers.0.experts_in.weight", pieces)
    weight = loaded.weights["layers.0.experts_in.weight"]
    assert weight.format.name == ("packed blocks" if len(set(forms)) == 1 else "packed")
    values = PlainWeight(torch.cat([dequantize_blocks(piece) for piece in pieces]))
    x = torch.randn(6, 256, generator=torch.Generator().manual_seed(1))
    routes = route_tokens(x[:, :5].contiguous(), Routing(num_chosen=1))
    expected = values.experts(None)(x, routes, None)
    assert float((weight.experts(None)(x, routes, None) - expected).norm() / expected.norm()) < 0.02
