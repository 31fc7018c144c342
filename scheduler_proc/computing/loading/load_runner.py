"""Loads a model and returns its runner, ready for the first step."""

import logging
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from kernels.cpu.library import load_kernels
from messages.config import Config, DraftFacts
from messages.errors import BootError
from scheduler_proc.computing.cpu.kv_memory import KVMemory
from scheduler_proc.computing.cpu.loading import CpuBackend
from scheduler_proc.computing.gpu.device import CudaDevice
from scheduler_proc.computing.gpu.loading import GpuBackend
from scheduler_proc.computing.loading.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.loading.identity import identity_of
from scheduler_proc.computing.loading.placement import Placement, find_placement, set_cpu_threads, use_gpu
from scheduler_proc.computing.loading.weights import Report, make_dummy_weights
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.decoder_config import parameter_shapes
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.kv_tensors import (
    GIB,
    KVTensors,
    allocate_cache,
    choose_num_pages,
    page_bytes,
    pages_per_context,
)
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.step.shapes import StepLimits
from scheduler_proc.computing.tiers.open_tiers import open_tiers
from scheduler_proc.computing.tiers.page_copies import PageCopies

log = logging.getLogger("sluice.load_runner")

STEP_TOKENS_CUDA, STEP_TOKENS_CPU = 8192, 512


class _Model(NamedTuple):
    """A model and what makes runners of it."""

    decoder: Decoder
    backend: CpuBackend | GpuBackend


def load_runner(config: Config, report: Report, engine: int = 1, kv_file: Path | None = None) -> Runner:
    """Returns a runner that is ready for its first step, and tells `report` what it is doing meanwhile.

    Of several schedulers, number `engine` takes its share of the machine (`--data-parallel`). On a CPU its KV cache is
    in `kv_file`, if there is one, and holds what a predecessor has computed. Raises `BootError` for a model that is not
    supported, weights that do not fit it, and memory, cores or GPUs that do not suffice.
    """
    report("reading the model's configuration", None)
    hf_config = read_hf_config(Path(config.facts.model_dir))
    placement = find_placement(config.model, config.cache, hf_config, engine)
    _refuse_what_is_for_gpus(config, placement)
    if placement.is_cuda:
        use_gpu(placement.device)
    else:
        set_cpu_threads(config.model.cpu_threads, config.run.data_parallel, engine)
    scheduling, page_size = config.scheduling, config.cache.block_size
    num_tokens = scheduling.max_num_batched_tokens or (STEP_TOKENS_CUDA if placement.is_cuda else STEP_TOKENS_CPU)
    limits = StepLimits(scheduling.max_num_seqs, num_tokens, pages_per_context(config))
    device = CudaDevice(placement.device) if placement.is_cuda else None
    load = partial(_load_model, placement=placement, device=device, limits=limits)
    decoder, backend = load(config, hf_config, report)
    draft = None
    if config.facts.draft is not None:
        draft = load(*_read_draft_config(config, config.facts.draft), report)
        _warn_if_large(decoder, draft.decoder)
    memory = None
    if kv_file is not None and not placement.is_cuda:
        memory = KVMemory(kv_file, identity_of(config, decoder.config, placement, config))

    def make_cache(num_pages: int) -> KVTensors:
        return allocate_cache(decoder.config, num_pages, page_size, placement, memory)

    def add_runner(cache: KVTensors) -> Runner:
        runner = backend.make_runner(cache)
        if draft is not None:
            draft_cache = allocate_cache(draft.decoder.config, cache.num_pages, page_size, placement)
            runner.draft_runner = draft.backend.make_runner(draft_cache)
        return runner

    bytes_per_page = page_bytes(decoder.config, page_size, placement)
    if draft is not None:
        bytes_per_page += page_bytes(draft.decoder.config, page_size, placement)
    if memory is not None and memory.num_pages:
        num_pages = memory.num_pages
    else:
        free_bytes = backend.measure_cache_bytes(lambda num: add_runner(make_cache(num)), bytes_per_page)
        num_pages = choose_num_pages(config, bytes_per_page, free_bytes)
    report("allocating the KV cache", None)
    _log_size(num_pages * page_size, placement, num_pages * bytes_per_page)
    cache = make_cache(num_pages)
    report("warming up", None)
    runner = add_runner(cache)
    runner.page_memory = memory
    backend.warm_up(runner)
    if draft is not None and runner.draft_runner is not None:
        draft.backend.warm_up(runner.draft_runner)
    if config.cache.kv_disk or config.cache.kv_offload_gb:
        identity = identity_of(config, decoder.config, placement)
        _add_tiers(runner, PageCopies(cache, backend.device), config, identity, engine)
    return runner


def _log_size(num_tokens: int, placement: Placement, num_bytes: int) -> None:
    dtype_name = str(placement.kv_dtype).removeprefix("torch.")
    log.info("KV cache: %d tokens in %s, %.2f GiB", num_tokens, dtype_name, num_bytes / GIB)


def _add_tiers(runner: Runner, copies: PageCopies, config: Config, identity: bytes, engine: int) -> None:
    runner.page_store, missing = open_tiers(config.cache, copies, identity, engine)
    runner.degraded = "; ".join(filter(None, (runner.degraded, missing)))


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


def _load_model(
    config: Config,
    hf_config: HfConfig,
    report: Report,
    placement: Placement,
    device: CudaDevice | None,
    limits: StepLimits,
) -> _Model:
    """Loads a model for `device`, or for the CPU where there is none."""
    decoder = _load_decoder(config, hf_config, placement, report)
    if device is None:
        return _Model(decoder, CpuBackend(config, decoder, limits))
    return _Model(decoder, GpuBackend(config, decoder, device, limits, report, placement.kv_codes))


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
    size, draft_size = (sum(map(prod, parameter_shapes(each.config).values())) / 1e6 for each in (model, draft))
    if draft_size >= size:
        log.warning(
            "the draft model has %.1f million parameters, the model %.1f million: its draft tokens take more time than "
            "they save; take a much smaller one",
            draft_size,
            size,
        )


def _load_decoder(config: Config, hf_config: HfConfig, placement: Placement, report: Report) -> Decoder:
    family = find_family(hf_config)
    decoder_config = family.read_config(hf_config, config.facts.max_model_len)
    if not placement.is_cuda:
        load_kernels(report)
    if config.model.load_format == "dummy":
        weights = make_dummy_weights(decoder_config, placement, report)
    else:
        # Imported here and not above: they need safetensors, which a machine for random weights may lack.
        from scheduler_proc.computing.loading.checkpoint import open_checkpoint
        from scheduler_proc.computing.loading.weight_cache import load_through_cache

        checkpoint = open_checkpoint(Path(config.facts.model_dir), config.model.load_format)
        is_cached = config.model.weight_cache
        weights = load_through_cache(decoder_config, family, checkpoint, placement, report, is_cached)
    fuses_norms = placement.is_cuda and config.model.fuse_norms
    return Decoder(decoder_config, weights, config.facts.max_model_len, fuses_norms)
