"""The memory of the paged KV cache: how many pages there are, and the tensors.

Shape legend: L layers with equal heads, S slots (pages * page size), G key/value heads, D head dimension.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.formats.plain import PLAIN
from messages.config.server import Config
from messages.errors import BootError
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement

GIB = 2**30
MAX_CPU_CACHE_BYTES = 4 * GIB

log = logging.getLogger("sluice.kv_cache")


class KVTensors:
    """K and V of all layers; a page has slots in each of them.

    `stacks`: by the indices of layers with equal heads, their K and V, each [L, S, G, D], and the scales of both,
    [L, S, G], if they are codes. A slot that no step has written is uninitialised and may hold NaN.
    """

    def __init__(self, stacks: Mapping[tuple[int, ...], Sequence[Tensor]], page_size: int):
        self.tensors = [tensor for stack in stacks.values() for tensor in stack]
        """All tensors that pages consist of."""
        self.num_pages = self.tensors[0].shape[1] // page_size
        layers: dict[int, PagedKV] = {}
        for indices, stack in stacks.items():
            for index, (key_SGD, value_SGD, *scales_SG) in zip(indices, zip(*stack, strict=True), strict=True):
                layers[index] = PagedKV(key_SGD, value_SGD, page_size, *scales_SG)
        self.layers = [layers[index] for index in range(len(layers))]


def allocate_cache(
    model: ModelDescription, num_pages: int, page_size: int, placement: Placement, memory: KVMemory | None = None
) -> KVTensors:
    """Returns an uninitialised cache; on a CPU, memory is provided when it is first written. Raises `BootError`.

    If it is in `memory`, it may contain a predecessor's pages.
    """
    indices: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, attention in enumerate(model.attentions):
        indices[attention.num_kv_heads, attention.head_dim].append(index)

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return PLAIN.allocate(shape, dtype, placement.device).stored if memory is None else memory.take(shape, dtype)

    stacks: dict[tuple[int, ...], list[Tensor]] = {}
    try:
        if memory is not None:
            memory.map(num_pages, page_size, num_pages * page_bytes(model, page_size, placement))
        for heads, layers in indices.items():
            shape = (len(layers), num_pages * page_size, *heads)
            scales = [(shape[:-1], SCALE_DTYPE)] * 2 if placement.kv_codes else []
            stacks[tuple(layers)] = [empty(*each) for each in [(shape, placement.kv_dtype)] * 2 + scales]
    except (RuntimeError, OSError) as error:
        needed = num_pages * page_bytes(model, page_size, placement) / GIB
        raise BootError(
            f"the KV cache of {num_pages:,} pages needs {needed:.2f} GiB, which {placement.device} does not give: "
            f"{str(error).splitlines()[0]}; lower --num-pages or --kv-cache-memory-gb"
        ) from None
    return KVTensors(stacks, page_size)


def page_bytes(model: ModelDescription, page_size: int, placement: Placement) -> int:
    """Returns the bytes of one page: K and V of `page_size` tokens in all layers."""
    itemsize, scale_bytes = placement.kv_dtype.itemsize, SCALE_DTYPE.itemsize if placement.kv_codes else 0
    return sum(
        2 * page_size * attention.num_kv_heads * (attention.head_dim * itemsize + scale_bytes)
        for attention in model.attentions
    )


def pages_per_context(config: Config) -> int:
    """Returns the pages of the longest request."""
    return -(-config.facts.max_model_len // config.cache.block_size)


def choose_num_pages(config: Config, bytes_per_page: int, free_bytes: int) -> int:
    """Returns the pages of the cache: from the flags, otherwise as many as fit into `free_bytes` and can be used.

    Raises `BootError` if one request of full length does not fit.
    """
    cache = config.cache
    if cache.num_pages is not None:
        num_pages, origin = cache.num_pages, f"--num-pages {cache.num_pages}"
    elif cache.kv_cache_memory_gb is not None:
        budget_bytes = int(cache.kv_cache_memory_gb * GIB)
        num_pages, origin = budget_bytes // bytes_per_page, f"--kv-cache-memory-gb {cache.kv_cache_memory_gb:g}"
    else:
        most_useful = config.scheduling.max_num_seqs * pages_per_context(config)
        num_pages, origin = min(max(0, free_bytes) // bytes_per_page, most_useful), "the memory that is free for it"
    if num_pages < pages_per_context(config):
        raise _too_small(config, num_pages, bytes_per_page, origin)
    if num_pages * bytes_per_page > max(0, free_bytes):
        log.warning("the KV cache may take %.2f GiB, more than is free", num_pages * bytes_per_page / GIB)
    return num_pages


def _too_small(config: Config, num_pages: int, bytes_per_page: int, origin: str) -> BootError:
    page_size, needed_pages = config.cache.block_size, pages_per_context(config)
    return BootError(
        f"the KV cache is too small for one request of full length: {origin} gives "
        f"{num_pages * bytes_per_page / GIB:.4f} GiB ({num_pages:,} pages, {num_pages * page_size:,} tokens), but "
        f"--max-model-len {config.facts.max_model_len} needs {needed_pages * bytes_per_page / GIB:.4f} GiB "
        f"({needed_pages:,} pages of {page_size} tokens). Lower --max-model-len, raise --kv-cache-memory-gb, "
        "or take a 16-bit --dtype or an 8-bit --kv-cache-dtype"
    )


def free_cpu_cache_bytes(needed_bytes: int, num_processes: int = 1) -> int:
    """Returns the default size of a cache on the CPU: a quarter of the available memory, at most 4 GiB.

    Several engines or ranks share the quarter. A request of full length takes `needed_bytes`; if that is more than
    4 GiB, it is the limit instead.
    """
    share = available_memory_bytes(MEMORY_INFO, CGROUP) // (4 * num_processes)
    return min(max(MAX_CPU_CACHE_BYTES, needed_bytes), share)
