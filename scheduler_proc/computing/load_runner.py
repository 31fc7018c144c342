"""Loads a model and returns its runner, ready for the first step."""

import dataclasses
import logging
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from msgspec.structs import replace

from kernels.cpu.library import load_kernels
from messages.config.server import Config, DraftFacts
from messages.errors import BootError
from runtime.numa import file_of_group
from scheduler_proc.computing.backends.cpu.loading import CpuBackend
from scheduler_proc.computing.backends.cpu.weight_memory import WeightMemory
from scheduler_proc.computing.backends.cuda.device import CudaDevice
from scheduler_proc.computing.backends.cuda.loading import GpuBackend
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.kv_cache.kv_tensors import (
    GIB,
    KVTensors,
    allocate_cache,
    choose_num_pages,
    page_bytes,
    pages_per_context,
)
from scheduler_proc.computing.loading.identity import identity_of
from scheduler_proc.computing.loading.weights import has_own_head, make_dummy_weights, most_bytes
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import Decoder, model_parameters
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.parallel import ALONE, ParallelGroup, join_group
from scheduler_proc.computing.placement import Placement, find_placement, find_share, set_cpu_threads, use_gpu
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.step.shapes import StepLimits
from scheduler_proc.computing.tiers.open_tiers import open_tiers
from scheduler_proc.computing.tiers.page_copies import PageCopies

log = logging.getLogger("sluice.load_runner")

STEP_TOKENS_CUDA, STEP_TOKENS_CPU = 8192, 512


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its weights, from which runners are made. `identity`, on a CPU: that of weights kept in memory."""

    config: Config
    engine: int
    placement: Placement
    limits: StepLimits
    decoder: Decoder
    identity: bytes
    draft: "LoadedModel | None" = None
    is_warm: bool = False
    """At least one step has been run with it."""

    def make_runner(self, report: Report, kv_file: Path | None = None) -> Runner:
        """Returns a runner that is ready for its first step.

        On a CPU its KV cache is in `kv_file`, if there is one, and contains a predecessor's pages. Raises
        `BootError` for memory that does not suffice.
        """
        config, decoder, placement, draft = self.config, self.decoder, self.placement, self.draft
        page_size, memory = config.cache.block_size, None
        device = CudaDevice(placement.device) if placement.is_cuda else None
        if device is None:
            self.use_threads()
            memory = KVMemory(kv_file, self.identity) if kv_file is not None else None
        backend = self.make_backend(device, report)
        draft_backend = None if draft is None else draft.make_backend(device, report)

        def make_cache(num_pages: int) -> KVTensors:
            return allocate_cache(decoder.model, num_pages, page_size, placement, memory)

        def add_runner(cache: KVTensors) -> Runner:
            runner = backend.make_runner(cache)
            if draft is not None and draft_backend is not None:
                draft_cache = allocate_cache(draft.decoder.model, cache.num_pages, page_size, placement)
                runner.draft_runner = draft_backend.make_runner(draft_cache)
            return runner

        bytes_per_page = page_bytes(decoder.model, page_size, placement)
        if draft is not None:
            bytes_per_page += page_bytes(draft.decoder.model, page_size, placement)
        if memory is not None and memory.num_pages:
            num_pages = memory.num_pages
        else:
            free_bytes = backend.measure_cache_bytes(lambda num: add_runner(make_cache(num)), bytes_per_page)
            num_pages = choose_num_pages(config, bytes_per_page, free_bytes)
        num_pages = decoder.parallel.smallest(num_pages, placement.device)
        report("allocating the KV cache", None)
        dtype_name, cache_gib = placement.texts["kv_cache_dtype"], num_pages * bytes_per_page / GIB
        log.info("KV cache: %d tokens in %s, %.2f GiB", num_pages * page_size, dtype_name, cache_gib)
        cache = make_cache(num_pages)
        runner = add_runner(cache)
        runner.placement = placement.texts
        runner.page_memory = memory
        if not self.is_warm:
            report("warming up", None)
            backend.warm_up(runner)
            if draft_backend is not None and runner.draft_runner is not None:
                draft_backend.warm_up(runner.draft_runner)
                runner.degraded = "; ".join(filter(None, (runner.degraded, runner.draft_runner.degraded)))
        if isinstance(backend, CpuBackend):
            backend.begin(runner, report)
        if isinstance(draft_backend, CpuBackend) and runner.draft_runner is not None:
            draft_backend.begin(runner.draft_runner, report)
        if config.cache.kv_disk or config.cache.kv_offload_gb:
            self._add_tiers(runner, PageCopies(cache, backend.device))
        return runner

    def _add_tiers(self, runner: Runner, copies: PageCopies) -> None:
        identity = identity_of(self.config, self.decoder.model, self.placement)
        runner.page_store, missing = open_tiers(self.config.cache, copies, identity, self.engine)
        runner.degraded = "; ".join(filter(None, (runner.degraded, missing)))

    def make_backend(self, device: CudaDevice | None, report: Report) -> CpuBackend | GpuBackend:
        """Returns the factory of runners for `device`, or for the CPU if it is `None`."""
        if device is None:
            return CpuBackend(self.config, self.decoder, self.limits)
        return GpuBackend(self.config, self.decoder, device, self.limits, report, self.placement.kv_codes)

    def use_threads(self) -> None:
        run = self.config.run
        threads, rank = self.config.model.cpu_threads, self.decoder.parallel.rank
        set_cpu_threads(threads, self.config.most_engines, self.engine, run.tensor_parallel, rank)

    def warmed_up(self) -> "LoadedModel":
        """Returns the model after a step on a CPU, in a small cache of its own and on one thread."""
        torch.set_num_threads(1)
        cache = allocate_cache(self.decoder.model, self.limits.num_pages, self.config.cache.block_size, self.placement)
        backend = CpuBackend(self.config, self.decoder, self.limits)
        backend.warm_up(backend.make_runner(cache))
        return dataclasses.replace(self, is_warm=True)


def load_runner(
    config: Config, report: Report, engine: int = 1, kv_file: Path | None = None, weights_file: Path | None = None
) -> Runner:
    """Returns a runner that is ready for its first step; calls `report` with each phase of loading.

    Of several schedulers, number `engine` takes its share of the machine (`--data-parallel`). The files are in memory
    and outlive this process; they are used on a CPU. Raises `BootError` for a model that is not supported, weights that
    do not fit it, and memory, cores or GPUs that do not suffice.
    """
    return load_model(config, report, engine, weights_file).make_runner(report, kv_file)


def load_model(
    config: Config,
    report: Report,
    engine: int = 1,
    weights_file: Path | None = None,
    rank: int = 0,
    ranks_file: Path | None = None,
) -> LoadedModel:
    """Returns the model; on a CPU its weights are in `weights_file`, if there is one.

    The ranks of an engine (`--tensor-parallel`) load together, each its part of the weights, and find each other
    through `ranks_file`. Raises `BootError`, also for a model that they cannot divide.
    """
    place = _Place(engine, rank, ranks_file)
    model = _load(config, report, place, weights_file, is_shared_only=False)
    assert model is not None
    return model


def find_shared_model(config: Config, report: Report, engine: int, weights_file: Path | None) -> LoadedModel | None:
    """Returns the model, warmed up, if its weights are already in `weights_file`: it then takes little memory.

    It needs no device, so a successor can do it while its predecessor runs. A draft model has no weights there.
    """
    if (
        weights_file is None
        or config.facts.draft is not None
        or (config.model.device != "cpu" and torch.cuda.is_available())
    ):
        return None
    model = _load(config, report, _Place(engine), weights_file, is_shared_only=True)
    if model is None:
        return None
    report("warming up", None)
    return model.warmed_up()


class _Place(NamedTuple):
    """This process's place among all computing processes, and where it finds the other ranks of its engine."""

    engine: int
    rank: int = 0
    ranks_file: Path | None = None


def _load(
    config: Config, report: Report, place: _Place, weights_file: Path | None, is_shared_only: bool
) -> LoadedModel | None:
    report("reading the model's configuration", None)
    hf_config = read_hf_config(Path(config.facts.model_dir))
    placement = _use_device(config, hf_config, place)
    if not placement.is_cuda:
        load_kernels(report)
    parallel = ALONE if config.run.tensor_parallel == 1 else _join(config, place, placement, report)
    limits = _choose_limits(config, placement)

    def load_one(config: Config, hf_config: HfConfig, weights_file: Path | None) -> LoadedModel | None:
        family = find_family(hf_config)
        shard = Shard(_describe(config, family, hf_config), parallel.rank, parallel.size)
        identity = b""
        if not placement.is_cuda:
            identity = identity_of(config, shard.own, placement, config.model, config.cache, config.facts)

        def load_weights() -> Weights:
            return _load_weights(config, family, shard, placement, report)

        if placement.is_cuda or weights_file is None:
            weights = load_weights()
        else:
            share = find_share(config.most_engines, place.engine)
            memory = WeightMemory(file_of_group(weights_file, share.group), identity)
            if is_shared_only:
                weights = memory.find()
            else:
                # What is quantized is not made in its place.
                num_bytes = most_bytes(shard, placement) if placement.weight_bits is None else 0
                weights = memory.load(load_weights, report, num_bytes)
        if weights is None:
            return None
        decoder = Decoder(shard.own, weights, config.facts.max_model_len, parallel)
        return LoadedModel(config, place.engine, placement, limits, decoder, identity)

    model = load_one(config, hf_config, weights_file)
    if model is None or config.facts.draft is None:
        return model
    draft = load_one(*_read_draft_config(config, config.facts.draft), None)
    assert draft is not None
    _warn_if_large(model.decoder, draft.decoder)
    return dataclasses.replace(model, draft=draft)


def _use_device(config: Config, hf_config: HfConfig, place: _Place) -> Placement:
    """Binds this rank to its GPU, or to its share of the cores, and returns its placement."""
    num_ranks = config.run.tensor_parallel
    number = (place.engine - 1) * num_ranks + place.rank + 1
    placement = find_placement(config.model, config.cache, hf_config, number)
    _refuse_what_is_for_gpus(config, placement)
    if placement.is_cuda:
        use_gpu(placement.device)
    else:
        set_cpu_threads(config.model.cpu_threads, config.most_engines, place.engine, num_ranks, place.rank)
    return placement


def _choose_limits(config: Config, placement: Placement) -> StepLimits:
    scheduling = config.scheduling
    num_tokens = scheduling.max_num_batched_tokens or (STEP_TOKENS_CUDA if placement.is_cuda else STEP_TOKENS_CPU)
    return StepLimits(scheduling.max_num_seqs, num_tokens, pages_per_context(config))


def _join(config: Config, place: _Place, placement: Placement, report: Report) -> ParallelGroup:
    num_ranks = config.run.tensor_parallel
    if place.ranks_file is None:
        raise BootError(f"--tensor-parallel {num_ranks}: only a server has several ranks; leave it at 1")
    report("waiting for the other ranks", None)
    return join_group(place.ranks_file, place.rank, num_ranks, placement.device, config.run.boot_timeout_s)


def _refuse_what_is_for_gpus(config: Config, placement: Placement) -> None:
    attention = config.model.attention_backend
    if placement.is_cuda:
        return
    if attention != "auto":
        raise BootError(
            f"--attention-backend {attention}: the model runs on {placement.device}, and only a GPU has a choice; "
            "leave it out"
        )
    if config.cache.kv_offload_gb:
        raise BootError(
            "--kv-offload-gb: on a CPU the KV cache is in the host's memory; raise --kv-cache-memory-gb instead"
        )


def _read_draft_config(config: Config, draft: DraftFacts) -> tuple[Config, HfConfig]:
    """Returns the configuration as if the draft model were the model; its steps are not captured on a GPU."""
    sizes = {"vocab_size": draft.vocab_size, "max_model_len": draft.max_model_len}
    own = replace(
        config,
        model=replace(config.model, enforce_eager=True),
        scheduling=replace(config.scheduling, overlap=False),
        facts=replace(config.facts, model_dir=draft.model_dir, **sizes),
    )
    return own, read_hf_config(Path(draft.model_dir))


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


def _describe(config: Config, family: Family, hf_config: HfConfig) -> ModelDescription:
    """Returns the model that config.json describes, but with the checkpoint's own head, if it has one."""
    model = family.describe(hf_config, config.facts.max_model_len)
    if config.model.load_format == "dummy" or not model.has_tied_head:
        return model
    from scheduler_proc.computing.loading.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(Path(config.facts.model_dir), config.model.load_format)
    return dataclasses.replace(model, has_tied_head=not has_own_head(model, family, checkpoint))


def _load_weights(config: Config, family: Family, shard: Shard, placement: Placement, report: Report) -> Weights:
    if config.model.load_format == "dummy":
        return make_dummy_weights(shard, placement, report)
    # Imported here and not above: they need safetensors, which a machine for random weights may lack.
    from scheduler_proc.computing.loading.checkpoint import open_checkpoint
    from scheduler_proc.computing.loading.weight_cache import load_through_cache

    checkpoint = open_checkpoint(Path(config.facts.model_dir), config.model.load_format)
    return load_through_cache(shard, family, checkpoint, placement, report, config.model.weight_cache)
