"""The model families that can be served."""

from messages.errors import BootError
from scheduler_proc.computing.families import gpt2, llama
from scheduler_proc.computing.families.family import Family
from scheduler_proc.computing.hf_config import HfConfig

FAMILIES = (gpt2.FAMILY, llama.FAMILY)


def find_family(hf_config: HfConfig) -> Family:
    """Returns the family of the model. Raises `BootError` that names the supported architectures."""
    architectures = hf_config.texts("architectures")
    for family in FAMILIES:
        if any(name in family.architectures for name in architectures):
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    found = ", ".join(architectures) or "no architecture"
    raise BootError(f"config.json: architectures names {found}, which is not supported; supported are {supported}")
