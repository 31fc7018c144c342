"""Loads a model and returns its runner, ready for the first step."""

import dataclasses
import logging
import os
from functools import cache
from math import prod
from pathlib import Path

import torch
from msgspec.structs import replace

from messages.config.pooling import choose_dtype
from messages.config.server import Config, DraftFacts
from messages.errors import BootError
from runtime.model_files import refused_errors
from runtime.numa import file_of_group
from runtime.transformers_import import import_transformers
from scheduler_proc.computing.backends.backend import Backend, ModelParts, Place, RunnerFactory
from scheduler_proc.computing.backends.cpu.cores import find_share
from scheduler_proc.computing.backends.cpu.weight_memory import WeightMemory
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.kv_cache.kv_tensors import GIB, KVTensors, allocate_cache, choose_num_pages
from scheduler_proc.computing.kv_cache.page_sizes import PageSizes, pages_per_context, size_pages
from scheduler_proc.computing.loading.identity import identity_of
from scheduler_proc.computing.loading.model_weights import (
    bytes_in_place,
    count_bytes,
    describe,
    make_decoder,
    make_weights,
    no_mtp_head,
    open_checkpoint,
)
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import Decoder, DescribedDecoder, model_parameters
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.registry import find_family, needs_transformers
from scheduler_proc.computing.model.mtp_decoder import MtpDecoder
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.parallel import ALONE, ParallelGroup
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.runner import Publish, Runner, RunnerParts, StatePool
from scheduler_proc.computing.step.features.windows import find_window
from scheduler_proc.computing.step.shapes import StepLimits, limit_steps
from scheduler_proc.computing.tiers.open_tiers import open_tiers
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.computing.torch_import import import_fake_tensors

log = logging.getLogger("sluice.load_runner")


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its weights, from which runners are made. `identity`: that of weights kept in memory."""

    config: Config
    backend: Backend
    place: Place
    placement: Placement
    limits: StepLimits
    decoder: Decoder
    identity: bytes
    draft: "LoadedModel | None" = None
    window: int | None = None
    """The window of the layers that have window pages, if any have; those of a draft model have none."""
    is_warm: bool = False
    """At least one step has been run with it."""

    def make_runner(self, report: Report, kv_file: Path | None = None, publish: Publish | None = None) -> Runner:
        """Returns a runner that is ready for its first step; it calls `publish` before each step.

        If the backend keeps memory, the KV cache is in `kv_file`, possibly with a predecessor's pages. Raises
        `BootError` if there is not enough memory.
        """
        self.backend.bind(self.config, self.placement, self.place)
        memory = KVMemory(kv_file, self.identity) if kv_file is not None and self.backend.keeps_memory else None
        factory = self._make_factory(report)
        draft_factory = None if self.draft is None else self.draft._make_factory(report, factory)
        num_pages = self._count_pages(factory, draft_factory, memory)
        report("allocating the KV cache", None)
        self._log_cache(num_pages)
        cache = self._allocate(num_pages, memory)
        runner, degraded = self._ready(factory, cache, report, is_file=memory is not None)
        draft_runner = None
        if self.draft is not None and draft_factory is not None:
            draft_cache = self.draft._allocate_beside(cache)
            draft_runner, draft_degraded = self.draft._ready(draft_factory, draft_cache, report, is_file=False)
            degraded += draft_degraded
        store, sizes = None, self._sizes
        if self.config.cache.kv_disk or self.config.cache.kv_offload_gb:
            identity = identity_of(self.config, self.decoder.model, self.placement)
            device, num_states = factory.device, sizes.count_states(num_pages)
            copies = PageCopies(cache.tensors, num_pages, device, device.will_write)
            state_copies = PageCopies(cache.state_tensors, num_states, device) if num_states else None
            store, missing = open_tiers(self.config.cache, copies, state_copies, identity, self.place.engine)
            degraded.append(missing)
        texts, placement = "; ".join(filter(None, degraded)), self.placement.texts
        windows = None if self.window is None else (self.window, sizes.count_window_pages(num_pages))
        states = StatePool(sizes.count_states(num_pages), sizes.pages_per_state) if sizes.state_bytes else None
        return runner.with_parts(RunnerParts(texts, placement, memory, store, draft_runner, publish, windows, states))

    def _make_factory(self, report: Report, main: RunnerFactory | None = None) -> RunnerFactory:
        parts = ModelParts(self.config, self.decoder, self.limits, self.placement)
        return self.backend.make_factory(parts, report, main)

    def _allocate(self, num_pages: int, memory: KVMemory | None = None) -> KVTensors:
        numbers = self._sizes.count_window_pages(num_pages), self._sizes.count_states(num_pages)
        page_size = self.config.cache.block_size
        return allocate_cache(self.decoder.model, num_pages, page_size, self.placement, memory, *numbers)

    def _allocate_beside(self, cache: KVTensors) -> KVTensors:
        """Returns the cache of a draft model with as many pages as the model's, and the same hidden states."""
        own = self._allocate(cache.num_pages)
        own.hidden = cache.hidden
        return own

    def _count_pages(self, factory: RunnerFactory, draft_factory: RunnerFactory | None, memory: KVMemory | None) -> int:
        """Returns the pages of the KV cache: as many as in `memory`, or as the flags and the free memory allow."""

        def make_runner(num_pages: int) -> Runner:
            cache = self._allocate(num_pages)
            runner = factory.make_runner(cache)
            if self.draft is None or draft_factory is None:
                return runner
            draft_runner = draft_factory.make_runner(self.draft._allocate_beside(cache))
            return runner.with_parts(RunnerParts(draft_runner=draft_runner))

        if memory is not None and memory.num_pages:
            num_pages = memory.num_pages
        else:
            least = self.limits.num_pages
            free_bytes = factory.measure_cache_bytes(make_runner, -(-self._sizes.num_bytes(least) // least))
            num_pages = choose_num_pages(self.config, self._sizes, free_bytes)
        return self.decoder.parallel.smallest(num_pages, self.placement.device)

    @property
    def _sizes(self) -> PageSizes:
        """The bytes of pages, including the draft model's part."""
        drafted = 0 if self.draft is None else self.draft._sizes.page_bytes
        return size_pages(self.config, self.decoder.model, self.placement, self.limits, self.window, drafted)

    def _log_cache(self, num_pages: int) -> None:
        sizes, page_size = self._sizes, self.config.cache.block_size
        dtype, cache_gib = self.placement.texts["kv_cache_dtype"], sizes.num_bytes(num_pages) / GIB
        log.info("KV cache: %d tokens in %s, %.2f GiB", num_pages * page_size, dtype, cache_gib)
        if num_states := sizes.count_states(num_pages):
            state_mib, state_gib = sizes.state_bytes / 2**20, num_states * sizes.state_bytes / GIB
            log.info("of this memory, %.2f GiB are for %d states of %.2f MiB", state_gib, num_states, state_mib)
        if self.window is not None:
            num_pages = sizes.count_window_pages(num_pages)
            windowed = num_pages * page_size, num_pages * sizes.window_bytes / GIB, self.window
            log.info("of these, layers with a window have %d tokens, %.2f GiB; a request uses the last %d", *windowed)

    def _ready(
        self, factory: RunnerFactory, cache: KVTensors, report: Report, *, is_file: bool
    ) -> tuple[Runner, list[str]]:
        """Returns a warm runner whose cache has its memory, and what is missing or slower than it should be."""
        runner, degraded = factory.make_runner(cache), ""
        if not self.is_warm:
            report("warming up", None)
            degraded = factory.warm_up(runner, cache)
        factory.populate(cache, report, is_file=is_file)
        return runner, [degraded]

    def warmed_up(self, report: Report) -> "LoadedModel":
        """Returns the model after a step in a small cache of its own, on one thread."""
        report("warming up", None)
        torch.set_num_threads(1)
        cache, factory = self._allocate(self.limits.num_pages), self._make_factory(report)
        factory.warm_up(factory.make_runner(cache), cache)
        return dataclasses.replace(self, is_warm=True)


def load_runner(config: Config, report: Report, kv_file: Path | None = None) -> Runner:
    """Returns a runner that is ready for its first step; calls `report` with each phase of loading.

    `kv_file` is in memory and outlives this process; it is used on a CPU. Raises `BootError` for a model that is not
    supported, weights that do not fit it, and memory, cores or GPUs that do not suffice.
    """
    return load_model(config, report).make_runner(report, kv_file)


def load_model(
    config: Config,
    report: Report,
    engine: int = 1,
    weights_file: Path | None = None,
    rank: int = 0,
    ranks_file: Path | None = None,
) -> LoadedModel:
    """Returns the model; on a CPU its weights are in `weights_file`, if given.

    The ranks of an engine (`--tensor-parallel`) load together, each its part of the weights, and meet through
    `ranks_file`. Raises `BootError`, also for a model that they cannot divide.
    """
    place = Place(engine, rank, ranks_file)
    with refused_errors(config.facts.model_dir):
        model = _load(config, report, place, weights_file, is_shared_only=False)
    assert model is not None
    return model


def find_shared_model(config: Config, report: Report, engine: int, weights_file: Path | None) -> LoadedModel | None:
    """Returns the model, warmed up, if its weights are already in `weights_file`: it then takes little memory.

    It needs no device, so a successor can do it while its predecessor runs. A draft model has no weights there.
    """
    if weights_file is None or config.facts.draft is not None or not find_backend(config.model).keeps_memory:
        return None
    with refused_errors(config.facts.model_dir):
        model = _load(config, report, Place(engine), weights_file, is_shared_only=True)
    return None if model is None else model.warmed_up(report)


def _load(
    config: Config, report: Report, place: Place, weights_file: Path | None, is_shared_only: bool
) -> LoadedModel | None:
    report("reading the model's configuration", None)
    hf_config = read_hf_config(Path(config.facts.model_dir))
    backend = find_backend(config.model)
    placement, parallel = _place(config, hf_config, backend, place, report)
    limits = limit_steps(config, backend.default_step_tokens, pages_per_context(config))
    if config.facts.pooling is not None and config.facts.pooling.is_encoder:  # steps of whole prompts differ
        config = replace(config, model=replace(config.model, enforce_eager=True))

    def load_one(
        config: Config, hf_config: HfConfig, weights_file: Path | None, *, is_draft: bool = False
    ) -> LoadedModel | None:
        if needs_transformers(config.model, hf_config):
            if is_shared_only:
                return None
            if weights_file is not None and backend.keeps_memory:  # transformers has the weights in memory of its own
                os.truncate(file_of_group(weights_file, find_share(config.most_engines, place.engine).group), 0)
            parts = config, backend, place, placement, limits, report
            return _load_with_transformers(*parts, is_draft=is_draft)
        family = find_family(hf_config)
        open_once = cache(lambda: open_checkpoint(config))
        shard = Shard(describe(config, family, hf_config, open_once), parallel.rank, parallel.size)
        window, own_limits = _limit(config, shard.own, limits, is_draft=is_draft)
        identity = b""
        if backend.keeps_memory:
            identity = identity_of(config, shard.own, placement, config.model, config.cache, config.facts)

        def load_own() -> Weights:
            return make_weights(config, family, shard, open_once(), placement, report)

        file = None
        if weights_file is not None and backend.keeps_memory:
            file = file_of_group(weights_file, find_share(config.most_engines, place.engine).group)
        if file is None:
            weights = load_own()
        elif is_shared_only:
            weights = WeightMemory(file, identity).find()
        else:
            num_bytes = bytes_in_place(family, shard, open_once(), placement)
            weights = WeightMemory(file, identity).load(load_own, report, num_bytes)
        if weights is None:
            return None
        decoder = make_decoder(config, family, shard, weights, parallel, placement, is_draft=is_draft)
        loaded = LoadedModel(config, backend, place, placement, own_limits, decoder, identity, window=window)
        return loaded if shard.own.mtp is None else _with_mtp(loaded, decoder, weights)

    model = load_one(config, hf_config, weights_file)
    if model is None or config.facts.draft is None:
        return model
    draft = load_one(*_read_draft_config(config, config.facts.draft), None, is_draft=True)
    assert draft is not None
    _warn_if_large(model.decoder, draft.decoder)
    return dataclasses.replace(model, draft=draft)


def measure_model(config: Config, drafted_bytes: int = 0) -> tuple[int, PageSizes]:
    """Returns the bytes of the weights and of pages, by the headers of the model's files; no weight is read.

    `drafted_bytes` of each page are another model's. Raises `BootError` as loading would.
    """
    weight_bytes = 0
    if config.facts.draft is not None:
        draft_config = _read_draft_config(config, config.facts.draft)[0]
        draft_facts = replace(draft_config.facts, draft=None)
        weight_bytes, draft_sizes = measure_model(replace(draft_config, facts=draft_facts))
        drafted_bytes = draft_sizes.page_bytes
    with refused_errors(config.facts.model_dir):
        hf_config = read_hf_config(Path(config.facts.model_dir))
        backend, family = find_backend(config.model), find_family(hf_config)
        flags = replace(config.model, dtype=choose_dtype(config.model.dtype, config.facts.pooling))
        backend.load_kernels(lambda *_: None)  # formats depend on them
        placement = backend.find_placement(flags, config.cache, hf_config)
        checkpoint = open_checkpoint(config)
        shard = Shard(describe(config, family, hf_config, lambda: checkpoint))
        limits = limit_steps(config, backend.default_step_tokens, pages_per_context(config))
        sizes = size_pages(config, shard.own, placement, limits, find_window(config, shard.own), drafted_bytes)
        weight_bytes += count_bytes(family, shard, checkpoint, placement)
    return weight_bytes, sizes


def _place(
    config: Config, hf_config: HfConfig, backend: Backend, place: Place, report: Report
) -> tuple[Placement, ParallelGroup]:
    """Returns where this rank computes, and its group, once the kernels are loaded."""
    num_ranks = config.run.tensor_parallel
    number = (place.engine - 1) * num_ranks + place.rank + 1
    flags = replace(config.model, dtype=choose_dtype(config.model.dtype, config.facts.pooling))
    backend.load_kernels(report)
    placement = backend.find_placement(flags, config.cache, hf_config, number)
    backend.bind(config, placement, place)
    return placement, ALONE if num_ranks == 1 else _join(config, backend, place, report)


def _load_with_transformers(
    config: Config,
    backend: Backend,
    place: Place,
    placement: Placement,
    limits: StepLimits,
    report: Report,
    *,
    is_draft: bool,
) -> LoadedModel:
    """Returns the model, none of whose steps is captured. Raises `BootError`."""
    if config.model.num_lora_slots and not is_draft:
        raise BootError("--lora, --max-loras: adapters need a model family of ours, not transformers' code")
    if config.scheduling.speculative == "mtp":
        raise no_mtp_head(config)
    report("importing transformers", None)
    import_fake_tensors()
    import_transformers()
    # Imported here: it takes seconds, and other models do not need it.
    from scheduler_proc.computing.transformers_model.loading import load_decoder

    config = replace(config, model=replace(config.model, enforce_eager=True))
    decoder = load_decoder(config, placement, report)
    window, limits = _limit(config, decoder.model, limits, is_draft=is_draft)
    identity = identity_of(config, decoder.model, placement, config.model, config.cache, config.facts)
    return LoadedModel(config, backend, place, placement, limits, decoder, identity, window=window)


def _limit(
    config: Config, model: ModelDescription, limits: StepLimits, *, is_draft: bool
) -> tuple[int | None, StepLimits]:
    """Returns the window of the layers with window pages, if any have, and the limits of the model's steps."""
    window = None if is_draft else find_window(config, model)
    return window, limits.of_model(config, model, "draft" if is_draft else "main")


def _join(config: Config, backend: Backend, place: Place, report: Report) -> ParallelGroup:
    num_ranks = config.run.tensor_parallel
    if place.ranks_file is None:
        raise BootError(f"--tensor-parallel {num_ranks}: only a server has several ranks; leave it at 1")
    report("waiting for the other ranks", None)
    return backend.join_ranks(place.ranks_file, place.rank, num_ranks, config.run.boot_timeout_s)


def _read_draft_config(config: Config, draft: DraftFacts) -> tuple[Config, HfConfig]:
    """Returns the configuration as if the draft model were the model; its steps are not captured on a GPU."""
    sizes = {"vocab_size": draft.vocab_size, "max_model_len": draft.max_model_len}
    own = replace(_draft_config(config), facts=replace(config.facts, model_dir=draft.model_dir, **sizes))
    return own, read_hf_config(Path(draft.model_dir))


def _draft_config(config: Config) -> Config:
    model, scheduling = replace(config.model, enforce_eager=True), replace(config.scheduling, overlap=False)
    return replace(config, model=model, scheduling=scheduling)


def _with_mtp(model: LoadedModel, decoder: DescribedDecoder, weights: Weights) -> LoadedModel:
    """Returns the model with its head of multi-token prediction, whose weights are left, as its draft model."""
    head = MtpDecoder(decoder, weights, model.config.facts.max_model_len)
    limits = model.limits.of_model(model.config, head.model, "mtp")
    draft = dataclasses.replace(model, config=_draft_config(model.config), limits=limits, decoder=head, window=None)
    return dataclasses.replace(model, draft=draft)


def _warn_if_large(model: Decoder, draft: Decoder) -> None:
    size, draft_size = (
        sum(prod(parameter.shape) for parameter in model_parameters(each.model)) / 1e6 for each in (model, draft)
    )
    if draft_size >= size:
        log.warning(
            "the draft model has %.1f million parameters, the model %.1f million: its draft tokens take more time than "
            "they save; take a much smaller one",
            draft_size,
            size,
        )
