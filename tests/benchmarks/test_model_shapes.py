"""The shapes that kernels are compiled for are those of the configurations that are served."""

import pytest

from benchmarks.model_shapes import SHAPES
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.families.registry import find_family
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, ModelShape


@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_shapes_agree(name: str) -> None:
    hf_config = HfConfig(dict(SHAPES[name.lower().replace(" ", "-").replace("gpt-2", "gpt2")]))
    config = find_family(hf_config).describe(hf_config, 1024)
    attention = config.attentions[0]
    assert MODEL_SHAPES[name] == ModelShape(
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
        config.hidden_size,
        config.layers[0].mlp.size,
        config.vocab_size,
    )
