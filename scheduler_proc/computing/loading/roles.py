"""The roles of an engine's models, and what follows from a role."""

import logging
from collections.abc import Mapping
from math import prod

from msgspec.structs import replace

from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.backends.backend import ModelParts
from scheduler_proc.computing.model.description import MTP
from scheduler_proc.computing.model.stages import model_parameters
from scheduler_proc.computing.pipeline import WHOLE, StagePlace
from scheduler_proc.computing.step.inputs import Role

Models = Mapping[Role, ModelParts]

log = logging.getLogger("sluice.roles")


def find_configs(config: Config, place: StagePlace = WHOLE.place) -> dict[Role, Config]:
    """Returns the configuration of each model with files of its own, as if it were the only one.

    Only the last stage drafts. Raises `BootError` for a model that cannot have stages.
    """
    is_encoder = config.facts.pooling is not None and config.facts.pooling.is_encoder
    if is_encoder and place.num_stages > 1:
        raise BootError("--pipeline-parallel: an encoder computes a prompt in one step, so its stages would take turns")
    if config.facts.vision is not None and place.num_stages > 1:
        raise BootError("--pipeline-parallel: no stage has the rows of images; --mmproj none serves text only")
    if is_encoder:  # steps of whole prompts differ
        config = replace(config, model=replace(config.model, enforce_eager=True))
    configs: dict[Role, Config] = {"main": config}
    if (draft := config.facts.draft) is not None and place.is_last:
        own = drafting_config(config)
        model = replace(own.model, lora=(), max_loras=0, share_weights=False)
        sizes = {"vocab_size": draft.vocab_size, "max_model_len": draft.max_model_len}
        configs["draft"] = replace(own, model=model, facts=replace(config.facts, model_dir=draft.model_dir, **sizes))
    return configs


def drafting_config(config: Config) -> Config:
    """Returns the configuration of a model that drafts: its steps are not captured on a GPU."""
    model, scheduling = replace(config.model, enforce_eager=True), replace(config.scheduling, overlap=False)
    return replace(config, model=model, scheduling=scheduling)


def no_mtp_head(config: Config) -> BootError:
    return BootError(
        f"--speculative mtp: {config.facts.served_names[0]} has no head of multi-token prediction that can be used "
        f"(tensors {MTP}.* of Qwen3-Next and Qwen3.5, a last layer with eh_proj of DeepSeek V3 and GLM-4.7-Flash, or "
        "nextn in GGUF); use --speculative ngram, or --speculative draft with a smaller model of the same tokenizer"
    )


def warn_if_large(models: Models) -> None:
    """Logs a warning if there is a draft model that cannot pay off."""
    if "draft" not in models:
        return
    size, draft_size = (
        sum(prod(parameter.shape) for parameter in model_parameters(models[role].decoder.model)) / 1e6
        for role in ("main", "draft")
    )
    if draft_size >= size:
        log.warning(
            "the draft model has %.1f million parameters, the model %.1f million: its draft tokens take more time than "
            "they save; take a much smaller one",
            draft_size,
            size,
        )
