"""EXAONE 4: norms after attention and MLP and of each head; in models with windows, other layers are not rotated."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, olmo2
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, WINDOW, describe_kinds

DEFAULTS = HfConfig({"rms_norm_eps": 1e-5})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention = llama.describe_attention(hf_config, has_qk_norm=True)
    has_windows = hf_config.optional_count("sliding_window")
    ropes = {WINDOW: attention.rope, WHOLE_CONTEXT: None if has_windows else attention.rope}
    attentions = describe_kinds(hf_config, attention, max_model_len, period=4 if has_windows else 1, ropes=ropes)
    return llama.describe_model(hf_config, attentions, norms=olmo2.NORMS)


FAMILY = olmo2.FAMILY.like("Exaone4ForCausalLM", "exaone4", describe, defaults=DEFAULTS)
