"""The memory of the paged KV cache and of recurrent states: how many pages there are, and the tensors.

Shape legend: L mixers that keep parts of equal shapes, and as many pages, S slots (pages * page size, or state slots),
E embedding size.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kernels.formats.plain import PLAIN
from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.kv_cache.kv_memory import Kind, KVMemory
from scheduler_proc.computing.kv_cache.page_sizes import (
    PageSizes,
    list_tensors,
    page_bytes,
    pages_per_context,
    state_bytes,
)
from scheduler_proc.computing.model.blocks.registry import BLOCKS
from scheduler_proc.computing.model.description import CachePart, ModelDescription
from scheduler_proc.computing.placement import Placement

GIB = 2**30
MAX_CPU_CACHE_BYTES = 4 * GIB

LENGTH_STEP = 512
"""A shortened context is a multiple of this; it takes 7/8 of the free memory, as at the next start less may be free."""

log = logging.getLogger("sluice.kv_cache")


Group = tuple[Kind, tuple[tuple[int, int], ...]]
"""Mixers that keep parts of equal shapes in slots of the same kind: their layers, and their places in these."""


class KVTensors:
    """What the held mixers of `model` keep. A page has slots of all mixers with a cache, or of those without a window.

    `stacks`: the tensors of each group, each [L, S, …]. `hidden`: the final hidden states of tokens, [1, S, E], if they
    are kept. A slot that no step has written is uninitialised and may hold NaN.
    """

    def __init__(
        self,
        model: ModelDescription,
        stacks: Mapping[Group, Sequence[Tensor]],
        page_size: int,
        num_pages: int,
        hidden: Sequence[Tensor] = (),
    ):
        self.page_size, self.num_pages = page_size, num_pages
        self.tensors: list[Tensor] = []
        """All tensors that pages consist of."""
        self.state_tensors: list[Tensor] = []
        """All tensors that states consist of."""
        memory: dict[tuple[int, int], Any] = {}
        for (kind, places), stack in stacks.items():
            (self.state_tensors if kind == "state" else self.tensors).extend(stack)
            for (layer, place), tensors in zip(places, zip(*stack, strict=True), strict=True):
                block = BLOCKS[type(model.layers[layer].mixers[place])]
                memory[layer, place] = tensors if kind == "state" else block.open_cache(tensors, page_size)
        self.tensors += hidden
        self.hidden = hidden[0][0] if hidden else None
        self.num_bytes = sum(tensor.nbytes for tensor in self.tensors + self.state_tensors)
        self.layers = [
            [
                memory.get((index if mixer.kv_layer is None else mixer.kv_layer, place))
                for place, mixer in enumerate(layer.mixers)
            ]
            for index, layer in enumerate(model.layers)
        ]
        """By layer, the memory of each mixer; some may have the same."""


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

    num_slots: dict[Kind, int] = {
        "page": num_pages * page_size,
        "window page": num_window_pages * page_size,
        "state": num_states,
    }

    def allocate(parts: Sequence[CachePart], num_layers: int, kind: Kind) -> list[Tensor]:
        tensors = [((num_layers, num_slots[kind], *shape), dtype) for shape, dtype in list_tensors(parts, placement)]
        if memory is not None:
            return [memory.take(shape, dtype, kind) for shape, dtype in tensors]
        return [PLAIN.allocate(shape, dtype, placement.device).stored for shape, dtype in tensors]

    try:
        if memory is not None:
            memory.map(num_pages, page_size, num_bytes, num_window_pages, num_states)
        stacks: dict[Group, list[Tensor]] = {
            (kind, tuple(places)): allocate(parts, len(places), kind)
            for (kind, parts), places in _group_mixers(model, num_window_pages > 0).items()
        }
        hidden = allocate(model.hidden, 1, "page")
    except (RuntimeError, OSError) as error:
        raise BootError(
            f"the KV cache of {num_pages:,} pages needs {num_bytes / GIB:.2f} GiB, which {placement.device} does not "
            f"give: {str(error).splitlines()[0]}; lower --num-pages or --kv-cache-memory-gb"
        ) from None
    return KVTensors(model, stacks, page_size, num_pages, hidden)


def _group_mixers(
    model: ModelDescription, has_window_pages: bool
) -> Mapping[tuple[Kind, tuple[CachePart, ...]], list[tuple[int, int]]]:
    """Returns the places of mixers that keep equal parts in slots of the same kind."""
    groups: dict[tuple[Kind, tuple[CachePart, ...]], list[tuple[int, int]]] = defaultdict(list)
    for index in model.held:
        for place, mixer in enumerate(model.layers[index].mixers):
            if mixer.cache:
                is_window = has_window_pages and mixer.window is not None
                groups["window page" if is_window else "page", mixer.cache].append((index, place))
            if mixer.state:
                groups["state", mixer.state].append((index, place))
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
        max_useful_pages = config.scheduling.max_num_seqs * pages_per_context(config)
        num_pages, origin = min(sizes.fit(max(0, free_bytes)), max_useful_pages), "the memory that is free for it"
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


def share_of_memory(config: Config, available_bytes: int, needed_bytes: int) -> int:
    """Returns the default size of a cache on the CPU: a quarter of the available memory, at most 4 GiB.

    Several engines or ranks share the quarter. A request of full length takes `needed_bytes`; if that is more than
    4 GiB, it is the limit instead.
    """
    share = available_bytes // (4 * config.run.data_parallel * len(config.local_ranks))
    return min(max(MAX_CPU_CACHE_BYTES, needed_bytes), share)
