"""The angles of rotary embeddings, scaled or not."""

import pytest
import torch
import transformers

from scheduler_proc.computing.model.description import RopeDescription
from scheduler_proc.computing.model.rope_tables import make_rope_tables
from tests.scheduler_proc.computing.model.families.configs import LLAMA, LLAMA3_SCALING, read


@pytest.mark.parametrize("scaling", ["default", "linear", "llama3", "longrope"])
def test_angles_are_those_of_transformers(scaling: str) -> None:
    parameters = {"rope_theta": 1e4, "rope_type": scaling}
    if scaling != "default":
        parameters |= {"factor": 8.0}
    if scaling == "llama3":
        parameters |= LLAMA3_SCALING
    if scaling == "longrope":
        factors = [1 + 7 * index / 63 for index in range(64)]
        parameters |= {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    hf_config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=4096, rope_parameters=parameters
    )
    if scaling == "default":
        frequencies = 1.0 / 1e4 ** (torch.arange(0, 128, 2).float() / 128)
    else:
        frequencies, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[scaling](hf_config, torch.device("cpu"))
    angles = torch.arange(4096).float()[:, None] * frequencies
    ours = read(LLAMA | {"head_dim": 128, "rope_parameters": parameters})[1].attention.rope
    assert isinstance(ours, RopeDescription)
    cos, sin = make_rope_tables(ours, 128, 4096, torch.device("cpu"))
    torch.testing.assert_close(cos, angles.cos(), rtol=0, atol=1e-5)
    torch.testing.assert_close(sin, angles.sin(), rtol=0, atol=1e-5)
