"""The rules by the names of their families, and the families by the model types in config.json."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from messages.config.images import VisionFacts
from runtime.images.families.gemma3 import Gemma3
from runtime.images.families.gemma4 import Gemma4
from runtime.images.families.idefics3 import Idefics3
from runtime.images.families.internvl import InternVl
from runtime.images.families.lfm2_vl import Lfm2Vl
from runtime.images.families.llava import Llava
from runtime.images.families.llava_next import LlavaNext
from runtime.images.families.pixtral import Pixtral
from runtime.images.families.qwen_vl import QwenVl
from runtime.images.rule import Fields, Rule

RULES: dict[str, type[Rule]] = {
    "gemma3": Gemma3,
    "gemma4": Gemma4,
    "idefics3": Idefics3,
    "internvl": InternVl,
    "lfm2_vl": Lfm2Vl,
    "llava": Llava,
    "llava_next": LlavaNext,
    "llava_onevision": LlavaNext,
    "pixtral": Pixtral,
    "qwen2_5_vl": QwenVl,
    "qwen3_vl": QwenVl,
}

FAMILIES = {
    **{name: name for name in RULES},
    "internvl_chat": "internvl",
    "mistral3": "pixtral",
    "qwen3_5": "qwen3_vl",
    "qwen3_5_moe": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "smolvlm": "idefics3",
}


def family_of(config: Mapping[str, Any]) -> str | None:
    """Returns the family of the vision tower in a config.json, `None` if it is not known."""
    vision = config.get("vision_config")
    is_pixtral = isinstance(vision, Mapping) and cast("Fields", vision).get("model_type") == "pixtral"
    return "pixtral" if is_pixtral else FAMILIES.get(str(config.get("model_type")))


def read_rule(facts: VisionFacts) -> Rule:
    """Returns the rule of a model whose files the launcher has read."""
    return msgspec.json.decode(facts.processor, type=RULES[facts.family])
