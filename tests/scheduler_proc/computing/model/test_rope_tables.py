"""The angles of rotary embeddings, scaled or not, as transformers has them for the configurations of real models."""

from typing import Any

import pytest
import torch
import transformers

from kernels.arguments.rows import RopeTables
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.rope_tables import make_rope_tables
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, read

LONG_FACTORS = [1 + 7 * index / 47 for index in range(48)]
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": LONG_FACTORS}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 1.0,
}
GPT_OSS_YARN = {**YARN, "rope_theta": 150_000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
MINISTRAL3 = {**YARN, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0}
CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    # parameters, positions of the model, and served ones
    "linear": ({"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}, 4096, 4096),
    "part": ({"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0, "partial_rotary_factor": 0.25}, 4096, 4096),
    "llama3": (LLAMA3_SCALING | {"rope_theta": 5e5}, 4096, 4096),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, 2048, 2048),
    "dynamic, short": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, 2048, 512),
    "dynamic, long": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, 2048, 8000),
    "Qwen2.5 with YaRN": (YARN, 32768, 4096),
    "YaRN by positions": ({**YARN, "factor": None}, 131072, 4096),
    "DeepSeek": (DEEPSEEK_YARN, 163840, 4096),
    "gpt-oss": ({**GPT_OSS_YARN, "truncate": False}, 131072, 4096),
    "gpt-oss, truncated": (GPT_OSS_YARN, 131072, 4096),
    "Ministral 3": (MINISTRAL3, 262144, 4096),
    "given attention factor": ({**YARN, "attention_factor": 1.3}, 32768, 1024),
    "Phi-4-mini": ({**LONGROPE, "rope_theta": 1e4, "partial_rotary_factor": 0.75}, 131072, 8000),
    "Phi-4-mini, short": ({**LONGROPE, "rope_theta": 1e4, "partial_rotary_factor": 0.75}, 131072, 4096),
}


def tables_of(parameters: dict[str, Any] | None, positions: int, served: int, **fields: Any) -> RopeTables:
    config = LLAMA | {"head_dim": 128, "rope_parameters": parameters, "max_position_embeddings": positions, **fields}
    rope = read(config)[1].find(AttentionDescription)[0].rope
    assert rope is not None
    return make_rope_tables(rope, 128, served, torch.device("cpu"))


@pytest.mark.parametrize("name", CASES)
def test_angles_are_those_of_transformers(name: str) -> None:
    parameters, positions, served = CASES[name]
    fields = {"original_max_position_embeddings": 4096} if parameters["rope_type"] == "longrope" else {}
    hf_config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=positions, rope_parameters=parameters, **fields
    )
    initialize = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    frequencies, factor = initialize(hf_config, torch.device("cpu"), seq_len=served)
    angles = torch.arange(served).float()[:, None] * frequencies
    cos, sin, query_row = tables_of(parameters, positions, served, **fields)
    assert query_row == 0
    torch.testing.assert_close(cos, angles.cos() * factor, rtol=0, atol=2e-5)
    torch.testing.assert_close(sin, angles.sin() * factor, rtol=0, atol=2e-5)


def test_angles_without_scaling() -> None:
    frequencies = 1.0 / 1e4 ** (torch.arange(0, 128, 2).float() / 128)
    angles = torch.arange(4096).float()[:, None] * frequencies
    cos, sin, _ = tables_of({"rope_type": "default", "rope_theta": 1e4}, 4096, 4096)
    torch.testing.assert_close(cos, angles.cos(), rtol=0, atol=1e-5)
    torch.testing.assert_close(sin, angles.sin(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "first",
    [
        {"type": "su", "short_factor": [1.0] * 48, "long_factor": LONG_FACTORS},
        {"type": "yarn", "short_factor": [1.0] * 48, "long_factor": LONG_FACTORS},
    ],
)
def test_the_first_checkpoints_of_phi_3_call_longrope_otherwise(first: dict[str, Any]) -> None:
    fields = {"original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rope_theta": 1e4}
    found = tables_of(None, 131072, 8000, rope_scaling=first, **fields)
    expected = tables_of({**LONGROPE, "rope_theta": 1e4}, 131072, 8000, **fields)
    assert torch.equal(found.cosines, expected.cosines)


def test_a_context_beyond_the_original_has_the_factors_of_long_ones_and_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = {"original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75}
    tables_of(LONGROPE, 131072, 4096, **fields)
    assert not caplog.records
    tables_of(LONGROPE, 131072, 4097, **fields)
    assert "--max-model-len 4096" in caplog.text


def test_queries_of_ministral_grow_with_their_position() -> None:
    parameters = {**MINISTRAL3, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}
    cos, sin, first = tables_of(parameters, 256, 100, architectures=["Ministral3ForCausalLM"])
    scale = 1 + 0.1 * torch.log(1 + torch.floor(torch.arange(100) / 16))
    assert (first, len(cos), len(sin)) == (100, 200, 200)
    torch.testing.assert_close(cos[100:], cos[:100] * scale[:, None])
    torch.testing.assert_close(sin[100:], sin[:100] * scale[:, None])
