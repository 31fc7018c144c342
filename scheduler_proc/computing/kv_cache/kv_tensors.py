"""The memory of the paged KV cache and of recurrent states: how many pages there are, and the tensors.

Shape legend: L layers with equal heads and numbers of pages, or with equal states, S slots (pages * page size, or state
slots), G key/value heads, D head dimension, E embedding size.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.arguments.state_rows import LayerState
from kernels.formats.plain import PLAIN
from messages.config.server import Config
from messages.errors import BootError
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes
from scheduler_proc.computing.kv_cache.kv_memory import Kind, KVMemory
from scheduler_proc.computing.kv_cache.page_sizes import (
    PageSizes,
    page_bytes,
    pages_per_context,
    state_bytes,
    state_dtype,
)
from scheduler_proc.computing.model.description import ModelDescription, StatePart
from scheduler_proc.computing.placement import Placement

GIB = 2**30
MAX_CPU_CACHE_BYTES = 4 * GIB

LENGTH_STEP = 512
"""A shortened context is a multiple of this; it takes 7/8 of the free memory, as at the next start less may be free."""

log = logging.getLogger("sluice.kv_cache")


class KVTensors:
    """K and V of all layers. A page has slots in each, or in each without a window if there are window pages.

    `stacks`: by the indices of layers with equal heads, their K and V, each [L, S, G, D], and the scales of both,
    [L, S, G], if they are codes. `kv_layers`: the layer whose K and V each layer reads. `state_stacks`: by the indices
    of layers with equal states, their parts, each [L, S, …]. `hidden`: the final hidden states of tokens, [1, S, E], if
    they are kept. A slot that no step has written is uninitialised and may
    hold NaN.
    """

    def __init__(
        self,
        stacks: Mapping[tuple[int, ...], Sequence[Tensor]],
        page_size: int,
        kv_layers: Sequence[int | None],
        num_pages: int | None = None,
        state_stacks: Mapping[tuple[int, ...], Sequence[Tensor]] | None = None,
        hidden: Tensor | None = None,
    ):
        self.page_size = page_size
        self.tensors = [tensor for stack in stacks.values() for tensor in stack]
        """All tensors that pages consist of."""
        self.hidden = None if hidden is None else hidden[0]
        if hidden is not None:
            self.tensors.append(hidden)
        self.num_pages = self.tensors[0].shape[1] // page_size if num_pages is None else num_pages
        stored: dict[int, PagedKV] = {}
        for indices, stack in stacks.items():
            for index, (key_SGD, value_SGD, *scales_SG) in zip(indices, zip(*stack, strict=True), strict=True):
                stored[index] = PagedKV(key_SGD, value_SGD, page_size, *scales_SG)
        self.layers = {index: stored[source] for index, source in enumerate(kv_layers) if source is not None}
        """By layer; some may have the same."""
        self.stored = [stored[index] for index in sorted(stored)]
        self.state_tensors = [tensor for stack in (state_stacks or {}).values() for tensor in stack]
        """All tensors that states consist of."""
        self.num_bytes = sum(tensor.nbytes for tensor in self.tensors + self.state_tensors)
        self.states: dict[int, LayerState] = {}
        """By layer."""
        for indices, stack in (state_stacks or {}).items():
            self.states |= zip(indices, zip(*stack, strict=True), strict=True)


def allocate_cache(
    model: ModelDescription,
    num_pages: int,
    page_size: int,
    placement: Placement,
    memory: KVMemory | None = None,
    num_window_pages: int = 0,
    num_states: int = 0,
) -> KVTensors:
    """Returns an uninitialised cache; on a CPU, memory is provided when it is first written. Raises `BootError`.

    If it is in `memory`, it may contain a predecessor's pages. Without window pages all layers have the same pages.
    """
    num_bytes = num_pages * page_bytes(model, page_size, placement) + num_states * state_bytes(model, placement)
    if num_window_pages:
        num_bytes -= (num_pages - num_window_pages) * page_bytes(model, page_size, placement, has_window=True)

    def allocate(shape: Sequence[int], dtype: torch.dtype, kind: Kind) -> Tensor:
        if memory is None:
            return PLAIN.allocate(tuple(shape), dtype, placement.device).stored
        return memory.take(shape, dtype, kind)

    try:
        if memory is not None:
            memory.map(num_pages, page_size, num_bytes, num_window_pages, num_states)
        stacks: dict[tuple[int, ...], list[Tensor]] = {}
        for (is_window, *heads), layers in _group_attentions(model, num_window_pages).items():
            kind, own_pages = ("window page", num_window_pages) if is_window else ("page", num_pages)
            shape = (len(layers), own_pages * page_size, *heads)
            parts = [(shape, placement.kv_dtype)] * 2
            parts += [(shape[:-1], SCALE_DTYPE)] * 2 if placement.kv_codes else []
            stacks[tuple(layers)] = [allocate(*part, kind) for part in parts]
        shape = (1, num_pages * page_size, model.hidden_size)
        hidden = None if model.mtp is None else allocate(shape, placement.dtype, "page")
        state_stacks: dict[tuple[int, ...], list[Tensor]] = {}
        for state, layers in _group_states(model).items():
            state_stacks[tuple(layers)] = [
                allocate((len(layers), num_states, *part.shape), state_dtype(part, placement), "state")
                for part in state
            ]
    except (RuntimeError, OSError) as error:
        raise BootError(
            f"the KV cache of {num_pages:,} pages needs {num_bytes / GIB:.2f} GiB, which {placement.device} does not "
            f"give: {str(error).splitlines()[0]}; lower --num-pages or --kv-cache-memory-gb"
        ) from None
    return KVTensors(stacks, page_size, model.kv_layers, num_pages, state_stacks, hidden)


def _group_attentions(model: ModelDescription, num_window_pages: int) -> Mapping[tuple[bool, int, int], list[int]]:
    """Returns the layers that store K and V, by whether these have window pages, and by their heads."""
    groups: dict[tuple[bool, int, int], list[int]] = defaultdict(list)
    for index, layer in enumerate(model.layers):
        attention = layer.attention
        if attention is not None and attention.stores_kv:
            has_own_pages = num_window_pages > 0 and attention.window is not None
            groups[has_own_pages, attention.num_kv_heads, attention.head_dim].append(index)
    return groups


def _group_states(model: ModelDescription) -> Mapping[tuple[StatePart, ...], list[int]]:
    """Returns the recurrent layers by the parts of their states."""
    groups: dict[tuple[StatePart, ...], list[int]] = defaultdict(list)
    for index, recurrent in model.recurrents.items():
        groups[recurrent.state].append(index)
    return groups


def choose_num_pages(config: Config, sizes: PageSizes, free_bytes: int) -> int:
    """Returns the pages of the cache: from the flags, otherwise as many as fit into `free_bytes` and can be used.

    Raises `BootError` if one request of full length does not fit, with a length that does unless flags set either.
    """
    cache, fitting_len = config.cache, 0
    if cache.num_pages is not None:
        num_pages, origin = cache.num_pages, f"--num-pages {cache.num_pages}"
    elif cache.kv_cache_memory_gb is not None:
        budget_bytes = int(cache.kv_cache_memory_gb * GIB)
        num_pages, origin = sizes.fit(budget_bytes), f"--kv-cache-memory-gb {cache.kv_cache_memory_gb:g}"
    else:
        most_useful = config.scheduling.max_num_seqs * pages_per_context(config)
        num_pages, origin = min(sizes.fit(max(0, free_bytes)), most_useful), "the memory that is free for it"
        if config.model.max_model_len is None:
            fitting_len = num_pages * cache.block_size * 7 // 8 // LENGTH_STEP * LENGTH_STEP
    if num_pages < pages_per_context(config):
        raise BootError(_too_small(config, num_pages, sizes, origin), fitting_len)
    if sizes.num_bytes(num_pages) > max(0, free_bytes):
        log.warning("the KV cache may take %.2f GiB, more than is free", sizes.num_bytes(num_pages) / GIB)
    return num_pages


def _too_small(config: Config, num_pages: int, sizes: PageSizes, origin: str) -> str:
    page_size, needed_pages = config.cache.block_size, pages_per_context(config)
    return (
        f"the KV cache is too small for one request of full length: {origin} gives "
        f"{sizes.num_bytes(num_pages) / GIB:.4f} GiB ({num_pages:,} pages, {num_pages * page_size:,} tokens), but "
        f"--max-model-len {config.facts.max_model_len} needs {sizes.num_bytes(needed_pages) / GIB:.4f} GiB "
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
