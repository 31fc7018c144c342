"""OLMo 3: OLMo 2 with windows in three of four layers, where the rope is not scaled."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, olmo2
from scheduler_proc.computing.model.families.layer_kinds import describe_kinds, read_ropes

DEFAULTS = HfConfig({"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "sliding_window": 4096})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention, ropes = olmo2.describe_attention(hf_config), read_ropes(hf_config)
    attentions = describe_kinds(hf_config, attention, max_model_len, period=4, ropes=ropes)
    return llama.describe_model(hf_config, attentions, norms=olmo2.NORMS)


FAMILY = olmo2.FAMILY.like("Olmo3ForCausalLM", "olmo3", describe, defaults=DEFAULTS)
