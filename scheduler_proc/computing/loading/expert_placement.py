"""Chooses the layers whose experts stay in the host's memory (`--cpu-experts`, decision 0166)."""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import torch

from messages.config.server import Config
from messages.errors import BootError
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes
from scheduler_proc.computing.kv_cache.kv_tensors import GIB
from scheduler_proc.computing.loading.cache_plan import CachePlan
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.loading.weights import Segments, max_bytes
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.expert_description import find_experts, on_host
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.model.workspace import room_sizes
from scheduler_proc.computing.placement import Placement

FIXED_BYTES = 1 << 30
"""Memory of the GPU for libraries and graphs: an estimate, as only running a step shows it."""

log = logging.getLogger("sluice.experts")


def place_experts(
    config: Config, model: ModelDescription, target: Target, find_segments: Callable[[], Segments | None]
) -> tuple[ModelDescription, Placement]:
    """Returns the model with the experts of some first layers in the host's memory, as `--cpu-experts` asks.

    The placement is that of `target`, with these experts. Raises `BootError` for models without experts, and if either
    memory does not suffice.
    """
    asked = config.model.cpu_experts
    if asked == "none":
        return model, target.placement
    with_experts = [index for index, layer in enumerate(model.layers) if find_experts(layer) is not None]
    if not with_experts:
        raise BootError(f"--cpu-experts {asked}: {config.facts.served_names[0]} has no experts; leave the flag out")
    if target.placement.dtype == torch.float16:
        raise BootError(f"--cpu-experts {asked}: the host computes no float16; take --dtype bfloat16")
    segments = find_segments() or {}

    def place(num_layers: int) -> ModelDescription:
        first = (on_host(layer) if index < num_layers else layer for index, layer in enumerate(model.layers))
        return replace(model, layers=tuple(first))

    def needed_bytes(num_layers: int) -> int:
        return _device_bytes(config, place(num_layers), target, segments)

    num_layers = len(model.layers) if asked in ("all", "auto") else min(int(asked), len(model.layers))
    if asked == "auto":
        free_bytes = target.backend.free_bytes(config, target.placement)
        num_layers = bisect_left(range(num_layers), -free_bytes, key=lambda number: -needed_bytes(number))
        if needed_bytes(num_layers) > free_bytes:
            raise BootError(
                f"--cpu-experts auto: without any experts, the GPU still needs {needed_bytes(num_layers) / GIB:.2f} "
                f"GiB with one request of full length, and {free_bytes / GIB:.2f} GiB are free there; lower "
                "--max-model-len or --max-num-batched-tokens"
            )
    placed = place(num_layers)
    host_bytes = max_bytes(Shard(placed), target.placement, segments, is_on_host=True)
    num_placed = len([index for index in with_experts if index < num_layers])
    text = f"{num_placed} of {len(with_experts)} layers, {host_bytes / GIB:.2f} GiB" if num_placed else ""
    log.info("in the host's memory: experts of %s", text or "no layer")
    free_bytes = available_memory_bytes(MEMORY_INFO, CGROUP) // config.max_local_engines
    if host_bytes > free_bytes:
        raise BootError(
            f"--cpu-experts {asked}: the experts of {num_placed} layers take {host_bytes / GIB:.2f} GiB of the host's "
            f"memory, and {free_bytes / GIB:.2f} GiB are free for each engine; take fewer layers, or a checkpoint "
            "with fewer bits (GGUF)"
        )
    return placed, replace(target.placement, host_experts=text)


def _device_bytes(config: Config, model: ModelDescription, target: Target, segments: Segments) -> int:
    """Returns about what the GPU needs: weights, the KV cache of one request of full length or of flags, a step."""
    placement, limits = target.placement, target.limits.of_model(config, model, "main")
    sizes = CachePlan(config, {"main": model}, placement, limits).sizes
    cache_bytes = sizes.num_bytes(config.cache.num_pages or sizes.pages_per_context)
    if config.cache.kv_cache_memory_gb is not None and config.cache.num_pages is None:
        cache_bytes = int(config.cache.kv_cache_memory_gb * GIB)
    of_token = sum(room_sizes(model.layers, model.hidden_size).values()) * placement.dtype.itemsize
    step_bytes = limits.max_num_batched_tokens * of_token + 2 * limits.max_num_seqs * model.vocab_size * 4
    return max_bytes(Shard(model), placement, segments) + cache_bytes + step_bytes + FIXED_BYTES
