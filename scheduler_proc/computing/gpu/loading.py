"""Makes the runner of a GPU: measures what steps and graphs take of its memory, and gives the KV cache the rest."""

import gc
import logging
from collections.abc import Callable

import torch

from kernels.gpu.triton_kernels import load_triton_kernels
from messages.config import Config
from messages.errors import BootError
from scheduler_proc.computing.gpu.attention_plans import AttentionPlans
from scheduler_proc.computing.gpu.captured_steps import Report
from scheduler_proc.computing.gpu.device import Device
from scheduler_proc.computing.gpu.runner import GpuRunner
from scheduler_proc.computing.loading.placement import Placement
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.kv_tensors import (
    GIB,
    allocate_cache,
    choose_num_pages,
    page_bytes,
    pages_per_context,
)
from scheduler_proc.computing.step.dummy_batch import plan_dummy_batch, plan_warm_ups
from scheduler_proc.computing.step.shapes import StepLimits

log = logging.getLogger("sluice.gpu_loading")

MakeRunner = Callable[[int], GpuRunner]
"""Takes the number of pages."""


def load_gpu_runner(
    config: Config,
    decoder: Decoder,
    placement: Placement,
    device: Device,
    max_num_batched_tokens: int,
    report: Report,
) -> GpuRunner:
    """Returns a runner that is ready for its first step. Raises `BootError` where memory does not suffice."""
    page_size = config.cache.block_size
    limits = StepLimits(config.scheduling.max_num_seqs, max_num_batched_tokens, pages_per_context(config))
    plans = _make_plans(config, decoder, device)

    def make_runner(num_pages: int) -> GpuRunner:
        cache = allocate_cache(decoder.config, num_pages, page_size, placement)
        return GpuRunner(decoder, cache, device, limits, plans, config.scheduling.overlap)

    bytes_per_page = page_bytes(decoder.config, page_size, placement)
    free_bytes, can_capture = _measure(config, make_runner, device, bytes_per_page, report)
    num_pages = choose_num_pages(config, bytes_per_page, free_bytes)
    report("allocating the KV cache", None)
    runner = make_runner(num_pages)
    report("warming up", None)
    for batch in plan_warm_ups(config, max_num_batched_tokens):
        runner.run(batch)
    if can_capture:
        runner.capture(report)
    return runner


def _make_plans(config: Config, decoder: Decoder, device: Device) -> AttentionPlans | None:
    """Loads the Triton kernels; `None` where there are none, which is logged: torch computes then."""
    try:
        load_triton_kernels(device.torch_device.type)
    except ImportError as error:
        log.warning(
            "Triton cannot be loaded (%s), so plain torch computes, without CUDA graphs and without overlapped steps: "
            "many times slower. `pip install triton` brings it to Linux",
            error,
        )
        return None
    max_rows, shares_prefixes = config.scheduling.max_num_seqs, config.cache.shared_prefix_attention
    return AttentionPlans(decoder.config, config.cache.block_size, max_rows, shares_prefixes, device.torch_device)


def _measure(
    config: Config, make_runner: MakeRunner, device: Device, bytes_per_page: int, report: Report
) -> tuple[int, bool]:
    """Returns the bytes that a cache may take, and whether graphs can be captured.

    A step of the largest size is run, and the largest graphs are captured, with the smallest cache: graphs hold the
    addresses of their cache, so they cannot be kept.
    """
    report("measuring the memory of a step", None)
    context_pages = pages_per_context(config)
    runner = make_runner(context_pages)
    device.release_unused()  # what loading took
    _run_full_step(runner, config, device)
    # What the step took is kept for later use, so it counts as used.
    free_bytes, total_bytes = device.memory()
    used_bytes = total_bytes - free_bytes - context_pages * bytes_per_page
    graph_bytes = None if config.model.enforce_eager else runner.capture(report, is_rehearsal=True)
    del runner
    gc.collect()
    device.release_unused()
    left_bytes = int(total_bytes * config.cache.gpu_memory_utilization) - used_bytes - (graph_bytes or 0)
    log.info(
        "GPU memory: %.2f GiB in all, %.2f for weights and steps, %.2f for graphs; %.2f are left for the KV cache",
        *(num_bytes / GIB for num_bytes in (total_bytes, used_bytes, graph_bytes or 0, left_bytes)),
    )
    return left_bytes, graph_bytes is not None


def _run_full_step(runner: GpuRunner, config: Config, device: Device) -> None:
    num_tokens = runner.max_num_batched_tokens
    rows, longest = config.scheduling.max_num_seqs, config.facts.max_model_len
    try:
        runner.run(plan_dummy_batch(num_tokens, rows, longest, config.cache.block_size))
    except torch.OutOfMemoryError as error:
        raise BootError(
            f"a step of {num_tokens} tokens does not fit into the memory of {device.torch_device} beside the weights: "
            f"{str(error).splitlines()[0]} Lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
        ) from None
