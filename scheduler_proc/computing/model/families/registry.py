"""The model families that can be served."""

from importlib import import_module
from pathlib import Path

from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.model.families.headless import behead, name_with_head

DECODERS = (
    "gpt2 llama mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma2 gemma3 gemma4 olmo2 olmo3 cohere2 exaone4 gpt_oss phi3 "
    "smollm3 granite granite4 glm4 ministral3 glm4_moe dots1 ernie4_5_moe granitemoe olmoe qwen3_5 qwen3_5_moe "
    "qwen3_next lfm2 nemotron_h mamba2 falcon_h1 qwen2_5_vl qwen3_vl qwen3_vl_moe "
    "deepseek_v2 deepseek_v3 youtu minicpm3 mistral4"
)
"""The files here with families, by name; so those of encoders."""


def _import_families(files: str) -> tuple[Family, ...]:
    return tuple(import_module(f"{__package__}.{file}").FAMILY for file in files.split())


ENCODERS = _import_families("bert roberta mpnet modernbert")
FAMILIES = (*_import_families(DECODERS), *ENCODERS)
UNSUPPORTED_KINDS = {
    "VL": "a model of images and text",
    "Audio": "a model of sound and text",
    "Omni": "a model of images, sound and text",
}
"""Kinds of popular models, by a part of the architecture's name."""


def match_family(hf_config: HfConfig) -> Family | None:
    """Returns the family of the model, `None` if it is described here by none."""
    architectures = hf_config.texts("architectures")
    for family in FAMILIES:
        if any(name in family.architectures for name in architectures):
            return family
        if any(name_with_head(name) in family.architectures for name in architectures):
            return behead(family)
    model_type = hf_config.text("model_type", "none")
    for family in FAMILIES:
        if not architectures and model_type in family.model_types:
            return family
    return None


def needs_transformers(config: Config) -> bool:
    """True if transformers' code computes the model."""
    hf_config, impl = read_hf_config(Path(config.facts.model_dir)), config.model.model_impl
    return impl == "transformers" or (impl == "auto" and match_family(hf_config) is None)


def find_family(hf_config: HfConfig) -> Family:
    """Returns the family of the model. Raises `BootError` that names the supported architectures."""
    family = match_family(hf_config)
    if family is not None:
        return family
    architectures, model_type = hf_config.texts("architectures"), hf_config.text("model_type", "none")
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    found = ", ".join(name + _describe(name) for name in architectures) or f"no architecture (model_type {model_type})"
    raise BootError(f"config.json: architectures names {found}, which is not supported; supported are {supported}")


def _describe(architecture: str) -> str:
    kind = next((kind for part, kind in UNSUPPORTED_KINDS.items() if part in architecture), "")
    return kind and f" ({kind})"
