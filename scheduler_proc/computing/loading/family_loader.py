"""Loads a model of a family that is described here: its description, weights and decoders."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from messages.config.server import Config
from scheduler_proc.computing.backends.backend import ModelParts, SharedWeights
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.loading.expert_placement import place_experts
from scheduler_proc.computing.loading.identity import memory_identity
from scheduler_proc.computing.loading.roles import Models, drafting_config, no_mtp_head
from scheduler_proc.computing.loading.stage_placement import place_layers
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.loading.tied_head import has_own_head
from scheduler_proc.computing.loading.weights import (
    Segments,
    find_segments,
    make_dummy_weights,
    max_bytes,
)
from scheduler_proc.computing.model.adapters import Adapters
from scheduler_proc.computing.model.blocks.pooler import DenseLayer
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.mtp_decoder import MtpDecoder, describe_mtp
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.pipeline import WHOLE
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.step.inputs import Role

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.checkpoint import Checkpoint

log = logging.getLogger("sluice.family_loader")


class FamilyLoader:
    """Loads the model in this role, and its head of multi-token prediction if that drafts. Raises `BootError`."""

    def __init__(self, role: Role, config: Config, target: Target):
        self._role: Role = role
        self._config, self._target = config, target
        hf_config = read_hf_config(Path(config.facts.model_dir))
        self._family = find_family(hf_config)
        self._pipeline = target.pipeline if role == "main" else WHOLE
        whole, place, layers = self._describe(hf_config), self._pipeline.place, None
        if role == "main":
            target.backend.check_model(config, whole)
            whole, placement = place_experts(config, whole, target, lambda: self._find_segments(Shard(whole)))
            self._target = target = target._replace(placement=placement)
        if place.num_stages > 1:
            layers = place_layers(config, whole, target, lambda: self._find_segments(Shard(whole)))[place.stage]
            log.info("stage %d of %d: layers %d to %d", place.stage + 1, place.num_stages, layers[0], layers[-1])
        self._shard = Shard(whole, place.rank, place.num_ranks, layers)
        self.descriptions: dict[Role, ModelDescription] = {role: self._shard.own}
        """The models that it loads."""
        if self._shard.own.mtp is not None and self._shard.own.has_end:
            self.descriptions["mtp"] = describe_mtp(self._shard.own)
        self._limits = {role: target.limits.of_model(config, model, role) for role, model in self.descriptions.items()}

    def load(self, report: Report, *, is_shared_only: bool) -> Models | None:
        """Returns the models; `None` if only shared weights may be used and there are none."""
        memory = self._memory
        if is_shared_only:
            weights = memory.find()
        else:
            weights = memory.load(lambda: self._make_weights(report), report, self._count_in_place)
        return None if weights is None else self._make_models(weights)

    @cached_property
    def _memory(self) -> SharedWeights:
        config, target = self._config, self._target
        identity = memory_identity(config, self._shard.own, target.placement)
        return target.backend.open_weights(config, target.place, identity)

    @property
    def has_shared_weights(self) -> bool:
        """True if the weights are in memory already."""
        return self._memory.find() is not None

    def count_bytes(self) -> int:
        """Returns about the bytes of the weights, whatever form they have in their files."""
        return max_bytes(self._shard, self._target.placement, self._segments or {})

    def _count_in_place(self) -> int:
        """Returns the bytes that suffice for the weights, 0 if that is not known: quantized ones grow elsewhere."""
        is_known = self._target.placement.quantization is None and self._segments is not None
        return self.count_bytes() if is_known else 0

    @cached_property
    def _checkpoint(self) -> "Checkpoint | None":
        """The weight files; `None` if the weights are random."""
        if self._config.model.load_format == "dummy":
            return None
        # Imported here: it needs safetensors, which a machine that only runs random weights may lack.
        from scheduler_proc.computing.loading.open_weights import open_weights

        return open_weights(Path(self._config.facts.model_dir), self._config.model.load_format)

    @cached_property
    def _segments(self) -> Segments | None:
        return self._find_segments(self._shard)

    def _find_segments(self, shard: Shard) -> Segments | None:
        return {} if self._checkpoint is None else find_segments(shard, self._family, self._checkpoint)

    def _describe(self, hf_config: HfConfig) -> ModelDescription:
        """Returns the model that config.json describes, but with the checkpoint's own head, if it has one.

        With `--speculative mtp` it has a head of multi-token prediction; raises `BootError` if there is none.
        """
        config, family = self._config, self._family
        model = family.describe(hf_config, config.facts.max_model_len)
        if config.scheduling.speculative == "mtp":
            if not self._has_mtp(model):
                raise no_mtp_head(config)
            model = model.with_mtp()
        if not model.has_tied_head or self._checkpoint is None:
            return model
        return replace(model, has_tied_head=not has_own_head(model, family, self._checkpoint))

    def _has_mtp(self, model: ModelDescription) -> bool:
        """True if there is a head of multi-token prediction; random weights have one if the family knows any."""
        name, checkpoint = self._family.mtp_tensor.format(len(model.layers)), self._checkpoint
        return bool(name) and (checkpoint is None or name in checkpoint.files)

    def _make_weights(self, report: Report) -> Weights:
        shard, checkpoint, placement = self._shard, self._checkpoint, self._target.placement
        if checkpoint is None:
            return make_dummy_weights(shard, placement, report)
        if shard.whole.mtp is None and self._has_mtp(shard.whole):
            log.info("the checkpoint has a head of multi-token prediction: --speculative mtp drafts with it")
        # Imported here for the same reason.
        from scheduler_proc.computing.loading.weight_cache import load_through_cache

        return load_through_cache(shard, self._family, checkpoint, placement, report, self._config.model.weight_cache)

    def _make_models(self, weights: Weights) -> Models:
        config, target, model = self._config, self._target, self._shard.own
        limits, max_len = self._limits, config.facts.max_model_len
        parts = self._pipeline, self._open_adapters(weights), self._dense() if model.has_end else ()
        main = DescribedDecoder(model, weights, max_len, *parts, target.placement.dtype)
        models: dict[Role, ModelParts] = {self._role: ModelParts(config, main, limits[self._role], target.placement)}
        if model.mtp is not None and model.has_end:
            head = MtpDecoder(main, weights, max_len)
            models["mtp"] = ModelParts(drafting_config(config), head, limits["mtp"], target.placement)
        return models

    def _open_adapters(self, weights: Weights) -> Adapters | None:
        """Returns what the model has for LoRA adapters, `None` if LoRA is off."""
        if not self._config.model.num_lora_slots:
            return None
        # Imported here for the same reason.
        from scheduler_proc.computing.loading.adapters.read_adapter import open_adapters

        return open_adapters(self._config.model, self._family, self._shard.whole, weights, self._target.placement)

    def _dense(self) -> Sequence[DenseLayer]:
        """Returns the layers between pooling and normalisation of a model of sentence-transformers."""
        pooling = self._config.facts.pooling
        if pooling is None or not pooling.dense or self._checkpoint is None:
            return ()
        from scheduler_proc.computing.loading.open_weights import read_dense_layers

        return read_dense_layers(Path(self._config.facts.model_dir), pooling.dense, self._shard.own.hidden_size)
