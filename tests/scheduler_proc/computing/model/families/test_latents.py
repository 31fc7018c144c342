"""What families with latent attention refuse, and what they warn of."""

import logging
from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.latent_attention_description import LatentAttentionDescription
from tests.scheduler_proc.computing.model.families.real_configs import REAL

YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(("length", "warns"), [(4096, False), (4097, True)])
def test_queries_of_mistral_4_that_do_not_grow_are_warned_of(
    length: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = HfConfig(REAL["Mistral Small 4"].config | {"rope_parameters": YARN})
    with caplog.at_level(logging.WARNING):
        (attention, *_) = find_family(config).describe(config, length).find(LatentAttentionDescription)
    assert attention.rope.query_growth == 0
    assert ("contexts of up to 4096 tokens are computed exactly" in caplog.text) is warns


@pytest.mark.parametrize("name", ["DeepSeek V3.2", "GLM-5"])
def test_contexts_that_need_the_indexer_are_refused(name: str) -> None:
    config = HfConfig(REAL[name].config)
    assert find_family(config).describe(config, 2048).layers
    with pytest.raises(BootError, match=r"need the indexer, which is not supported; lower --max-model-len to 2048"):
        find_family(config).describe(config, 2049)


def test_models_named_after_others_are_deepseek_v3() -> None:
    """Kanana 2 and GigaChat 3 have its type, queries without a latent, and no groups of experts."""
    fields = REAL["Kimi K2, text of K2.5"].config | {"q_lora_rank": None, "hidden_size": 2048, "num_hidden_layers": 26}
    config = HfConfig(fields | {"architectures": [], "model_type": "deepseek_v3", "rope_scaling": None})
    (attention, *_) = find_family(config).describe(config, 4096).find(LatentAttentionDescription)
    assert attention.query_rank is None
