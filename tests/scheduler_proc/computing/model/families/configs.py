"""The smallest configurations of each family, and what families make of a configuration."""

from math import prod
from typing import Any

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.family import Family, StoredSource
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.stages import model_parameters

GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_positions": 64,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 32}
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 10, "layer_types": ["full_attention"] * 2}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(fields: dict[str, Any], max_model_len: int = 64) -> tuple[Family, ModelDescription]:
    hf_config = HfConfig(fields)
    family = find_family(hf_config)
    return family, family.describe(hf_config, max_model_len)


def check_sources(fields: dict[str, Any]) -> None:
    """The sources fill every element of every parameter once."""
    family, model = read(fields)
    shapes = {parameter.name: parameter.shape for parameter in model_parameters(model)}
    filled = {name: [0] * shape[0] for name, shape in shapes.items()}
    for source in family.list_sources(model):
        shape = source.shape[::-1] if source.change == "transposed" else source.shape
        assert prod(shape[1:]) == prod(shapes[source.target][1:])
        for first_row in StoredSource(source, range(source.parts.count)).first_rows:
            for row in range(first_row, first_row + source.num_rows):
                filled[source.target][row] += 1
    assert all(count == 1 for counts in filled.values() for count in counts)
