"""A model's description and weights, from its files or with random values."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from messages.config.server import Config, ModelConfig
from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.weights import find_segments, has_own_head, make_dummy_weights, most_bytes
from scheduler_proc.computing.model.adapters import Adapters
from scheduler_proc.computing.model.blocks.pooler import DenseLayer
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.description import MTP, ModelDescription
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.checkpoint import Checkpoint

MTP_TENSOR = f"{MTP}.fc.weight"

log = logging.getLogger("sluice.model_weights")


def describe(
    config: Config, family: Family, hf_config: HfConfig, open_once: "Callable[[], Checkpoint | None]"
) -> ModelDescription:
    """Returns the model that config.json describes, but with the checkpoint's own head, if it has one.

    With `--speculative mtp` it has a head of multi-token prediction; raises `BootError` if there is none.
    """
    model, wants_mtp = family.describe(hf_config, config.facts.max_model_len), config.scheduling.speculative == "mtp"
    checkpoint = open_once() if model.has_tied_head or wants_mtp else None
    if wants_mtp:
        if not family.can_have_mtp or not (checkpoint is None or MTP_TENSOR in checkpoint.files):
            raise no_mtp_head(config)
        model = model.with_mtp()
    if checkpoint is None or not model.has_tied_head:
        return model
    return dataclasses.replace(model, has_tied_head=not has_own_head(model, family, checkpoint))


def no_mtp_head(config: Config) -> BootError:
    return BootError(
        f"--speculative mtp: {config.facts.served_names[0]} has no head of multi-token prediction that can be used "
        f"(tensors {MTP}.*, or nextn in GGUF, of Qwen3-Next and Qwen3.5); use --speculative ngram, or "
        "--speculative draft with a smaller model of the same tokenizer"
    )


def open_checkpoint(config: Config) -> "Checkpoint | None":
    """Returns the model's weight files, `None` if its weights are random."""
    if config.model.load_format == "dummy":
        return None
    # Imported here: it needs safetensors, which a machine that only runs random weights may lack.
    from scheduler_proc.computing.loading.open_weights import open_weights

    return open_weights(Path(config.facts.model_dir), config.model.load_format)


def _read_dense(config: Config, hidden_size: int) -> Sequence[DenseLayer]:
    """Returns the layers between pooling and normalisation of a model of sentence-transformers."""
    pooling = config.facts.pooling
    if pooling is None or not pooling.dense or config.model.load_format == "dummy":
        return ()
    from scheduler_proc.computing.loading.open_weights import read_dense_layers

    return read_dense_layers(Path(config.facts.model_dir), pooling.dense, hidden_size)


def bytes_in_place(family: Family, shard: Shard, checkpoint: "Checkpoint | None", placement: Placement) -> int:
    """Returns the bytes that suffice for the weights, 0 if that is not known: quantized ones are not made in place."""
    segments = {} if checkpoint is None else find_segments(shard, family, checkpoint)
    if placement.quantization is not None or segments is None:
        return 0
    return most_bytes(shard, placement, segments)


def count_bytes(family: Family, shard: Shard, checkpoint: "Checkpoint | None", placement: Placement) -> int:
    """Returns about the bytes of the weights, whatever form they have in their files."""
    segments = {} if checkpoint is None else find_segments(shard, family, checkpoint)
    return most_bytes(shard, placement, segments or {})


def make_weights(
    config: Config,
    family: Family,
    shard: Shard,
    checkpoint: "Checkpoint | None",
    placement: Placement,
    report: Report,
) -> Weights:
    """Returns the shard's weights, on their device. Raises `BootError` for files that do not fit the model."""
    if checkpoint is None:
        return make_dummy_weights(shard, placement, report)
    if shard.whole.mtp is None and MTP_TENSOR in checkpoint.files:
        log.info("the checkpoint has a head of multi-token prediction: --speculative mtp drafts with it")
    from scheduler_proc.computing.loading.weight_cache import load_through_cache

    return load_through_cache(shard, family, checkpoint, placement, report, config.model.weight_cache)


def _make_adapters(
    config: ModelConfig, family: Family, shard: Shard, weights: Weights, placement: Placement
) -> Adapters | None:
    """Returns what the model has for LoRA adapters, `None` if LoRA is off. Raises `BootError` for several ranks."""
    if not config.num_lora_slots:
        return None
    if shard.num_ranks > 1:
        raise BootError("--lora, --max-loras: adapters are not divided among ranks; leave --tensor-parallel at 1")
    # Imported here for the same reason.
    from scheduler_proc.computing.loading.adapters.read_adapter import open_adapters

    return open_adapters(config, family, shard.whole, weights, placement)


def make_decoder(
    config: Config,
    family: Family,
    shard: Shard,
    weights: Weights,
    parallel: ParallelGroup,
    placement: Placement,
    *,
    is_draft: bool,
) -> DescribedDecoder:
    """Returns the decoder with these weights and the adapters and dense layers of its model."""
    adapters = None if is_draft else _make_adapters(config.model, family, shard, weights, placement)
    dense = _read_dense(config, shard.own.hidden_size)
    return DescribedDecoder(shard.own, weights, config.facts.max_model_len, parallel, adapters=adapters, dense=dense)
