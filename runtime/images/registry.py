"""The rules by the names of their families, and the families by the model types in config.json."""

import msgspec

from messages.config.images import VisionFacts
from runtime.images.families.idefics3 import Idefics3
from runtime.images.rule import Rule

RULES: dict[str, type[Rule]] = {"idefics3": Idefics3}

FAMILIES = {"idefics3": "idefics3", "smolvlm": "idefics3"}


def read_rule(facts: VisionFacts) -> Rule:
    """Returns the rule of a model whose files the launcher has read."""
    return msgspec.json.decode(facts.processor, type=RULES[facts.family])
