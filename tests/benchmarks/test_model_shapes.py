"""The shapes that kernels are compiled for are those of the configurations that are served."""

import pytest

from benchmarks.model_shapes import SHAPES, kv_bytes, plan_decode, plan_prefill, read_shape, state_bytes, with_states
from messages.columns import unpack_int32
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.families.registry import find_family
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, ModelShape


@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_shapes_agree(name: str) -> None:
    hf_config = HfConfig(dict(SHAPES[name.lower().replace(" ", "-").replace("gpt-2", "gpt2")]))
    config = find_family(hf_config).describe(hf_config, 1024)
    attention = config.find(AttentionDescription)[0]
    assert MODEL_SHAPES[name] == ModelShape(
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
        config.hidden_size,
        config.layers[0].mlp.size,
        config.vocab_size,
    )


def test_rows_have_states_if_layers_have_them() -> None:
    model = read_shape(SHAPES["qwen3.5-0.8b"], 64)
    assert kv_bytes(model, 2) == 6 * 2 * 2 * 256 * 2  # six layers attend
    assert state_bytes(model, 2) == 18 * (3 * 6144 * 2 + 16 * 128 * 128 * 4)
    assert state_bytes(read_shape(SHAPES["qwen3-0.6b"], 64), 2) == 0
    for batch, sources, slots in ((plan_decode(2, 8), [0, 1], [0, 1]), (plan_prefill(3), [-1], [-1, -1, 0])):
        assert with_states(batch, None) is batch
        planned = with_states(batch, (4, 1))
        assert unpack_int32(planned.state_sources).tolist() == sources
        assert unpack_int32(planned.state_slots).tolist() == slots
