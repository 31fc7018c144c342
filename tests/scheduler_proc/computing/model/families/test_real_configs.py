"""Real checkpoints: what their config.json becomes has their number of parameters, windows and layers without rope."""

import copy
import math
from collections import Counter

import pytest
import torch
import transformers

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.families.registry import ENCODERS, FAMILIES, find_family
from scheduler_proc.computing.model.stages import model_parameters
from tests.checkpoints import KEPT_BUFFERS
from tests.scheduler_proc.computing.model.families.real_configs import REAL, REFUSED, Fields


def num_parameters_of_transformers(fields: Fields) -> int:
    fields = copy.deepcopy(fields)
    model_class = getattr(transformers, fields.pop("architectures")[0])
    is_of_images = model_class.__name__.endswith("ForConditionalGeneration")
    if is_of_images:
        fields = {"text_config": fields, "tie_word_embeddings": fields["tie_word_embeddings"]}
    with torch.device("meta"):
        model = model_class(model_class.config_class(**fields))
    buffers = sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith(KEPT_BUFFERS))
    indexers = sum(part.numel() for name, part in model.named_parameters() if ".indexer." in name)
    return model.num_parameters() + buffers - indexers - (model.model.visual.num_parameters() if is_of_images else 0)


@pytest.mark.parametrize("name", REAL)
def test_the_description_has_the_numbers_of_the_checkpoint(name: str) -> None:
    real, hf_config = REAL[name], HfConfig(REAL[name].config)
    model = find_family(hf_config).describe(hf_config, real.context)
    attentions = model.find(AttentionDescription)
    num_copied = sum(model.hidden_size * each.kv_size for each in attentions if each.shares_kv_weight)
    num_parameters = sum(math.prod(parameter.shape) for parameter in model_parameters(model)) - num_copied
    assert num_parameters / 1e9 == pytest.approx(real.billions, rel=0.01)
    assert num_parameters == num_parameters_of_transformers(real.config)
    assert Counter(attention.window for attention in attentions if attention.window) == real.windows
    assert sum(bool(mixer.state) for mixer in model.mixers) == real.num_recurrent
    assert sum(attention.rope is None for attention in attentions) == real.num_unrotated


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_the_reason(name: str) -> None:
    fields, reason = REFUSED[name]
    with pytest.raises(BootError, match=reason):
        find_family(HfConfig(fields)).describe(HfConfig(fields), 4096)


def test_every_architecture_has_a_real_checkpoint() -> None:
    named = {name for real in REAL.values() for name in real.config["architectures"]}
    known = {name for family in FAMILIES if family not in ENCODERS for name in family.architectures}
    assert named == known - {"GraniteMoeSharedForCausalLM"}  # published in research alone
