"""Loads a model and returns the runner of its device, ready for the first step."""

from pathlib import Path

from kernels.cpu.library import load_kernels
from messages.config import Config
from scheduler_proc.computing.cpu.prefault import Prefault
from scheduler_proc.computing.cpu.runner import ModelRunner
from scheduler_proc.computing.gpu.device import CudaDevice
from scheduler_proc.computing.gpu.loading import load_gpu_runner
from scheduler_proc.computing.gpu.runner import GpuRunner
from scheduler_proc.computing.loading.hf_config import read_hf_config
from scheduler_proc.computing.loading.placement import find_placement, set_cpu_threads
from scheduler_proc.computing.loading.weights import Report, make_dummy_weights
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.kv_tensors import (
    allocate_cache,
    choose_num_pages,
    free_cpu_cache_bytes,
    page_bytes,
    pages_per_context,
)
from scheduler_proc.computing.step.dummy_batch import plan_warm_up
from scheduler_proc.computing.step.shapes import StepLimits

STEP_TOKENS_CUDA, STEP_TOKENS_CPU = 8192, 512


def load_runner(config: Config, report: Report) -> ModelRunner | GpuRunner:
    """Returns a runner that is ready for its first step, and tells `report` what it is doing meanwhile.

    Raises `BootError` for a model that is not supported, weights that do not fit it, and memory that does not suffice.
    """
    report("reading the model's configuration", None)
    hf_config = read_hf_config(Path(config.facts.model_dir))
    family = find_family(hf_config)
    decoder_config = family.read_config(hf_config, config.facts.max_model_len)
    placement = find_placement(config.model, hf_config)
    if not placement.is_cuda:
        set_cpu_threads(config.model.cpu_threads)
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
    decoder = Decoder(decoder_config, weights, config.facts.max_model_len)
    max_num_batched_tokens = config.scheduling.max_num_batched_tokens or (
        STEP_TOKENS_CUDA if placement.is_cuda else STEP_TOKENS_CPU
    )
    if placement.is_cuda:
        device = CudaDevice(placement.device)
        return load_gpu_runner(config, decoder, placement, device, max_num_batched_tokens, report)
    report("allocating the KV cache", None)
    bytes_per_page = page_bytes(decoder_config, config.cache.block_size, placement)
    free_bytes = free_cpu_cache_bytes(pages_per_context(config) * bytes_per_page)
    num_pages = choose_num_pages(config, bytes_per_page, free_bytes)
    cache = allocate_cache(decoder_config, num_pages, config.cache.block_size, placement)
    limits = StepLimits(config.scheduling.max_num_seqs, max_num_batched_tokens, pages_per_context(config))
    runner = ModelRunner(decoder, cache, placement, limits)
    report("warming up", None)
    runner.run(plan_warm_up(config, max_num_batched_tokens))
    runner.prefault = Prefault([part for layer in cache.layers for part in (layer.keys, layer.values)], num_pages)
    return runner
