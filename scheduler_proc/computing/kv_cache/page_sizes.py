"""The bytes of pages, and how many window pages and state slots a cache gets with its pages.

Windowed layers have window pages of their own (`scheduler_proc/deciding/pages/window_pages.py`); recurrent layers have
states instead of K and V, which do not grow with the sequence.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from kernels.arguments.paged_kv import SCALE_DTYPE
from messages.config.server import Config
from scheduler_proc.computing.model.description import CachePart, ModelDescription
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.features.windows import count_steady
from scheduler_proc.computing.step.shapes import StepLimits

MAX_WINDOW_RATIO = 2 / 3
"""The maximum bytes of window pages, as a share of those of pages, unless a request of full length needs more."""


LEAST_STATES = 4
"""The state slots that a cache has in any case: a request's own and some checkpoints."""

MANY_ROWS = 32
"""Until this number of rows have a slot each, pages and state slots share the memory equally."""

PAGES_TO_STATES = 2
"""The bytes of pages, as a multiple of those of state slots, if there is more."""


def page_bytes(model: ModelDescription, page_size: int, placement: Placement, has_window: bool | None = None) -> int:
    """Returns the bytes of `page_size` tokens in the caches of all held mixers, or those with (or without) a window.

    Final hidden states, if they are kept, count as one without.
    """
    mixers = (mixer for mixer in model.held_mixers if has_window in (None, mixer.window is not None))
    hidden = () if has_window else model.hidden
    return page_size * _count_bytes([*(part for mixer in mixers for part in mixer.cache), *hidden], placement)


def state_bytes(model: ModelDescription, placement: Placement) -> int:
    """Returns the bytes of a state slot, in all recurrent layers that are held."""
    return _count_bytes([part for mixer in model.held_mixers for part in mixer.state], placement)


def _count_bytes(parts: Sequence[CachePart], placement: Placement) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in list_tensors(parts, placement))


def list_tensors(parts: Sequence[CachePart], placement: Placement) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Returns the shape of a token or state in each tensor of these parts: their values, then the scales of codes."""
    dtypes = {"cache": placement.kv_dtype, "activation": placement.dtype, "float32": torch.float32}
    more = [part.num_uncoded if placement.kv_codes and part.number == "cache" else 0 for part in parts]
    shapes = [(*part.shape[:-1], part.shape[-1] + size) for part, size in zip(parts, more, strict=True)]
    tensors = [(shape, dtypes[part.number]) for part, shape in zip(parts, shapes, strict=True)]
    with_scales = [part for part in parts if part.number == "cache" and placement.kv_codes]
    return tensors + [(part.shape[:-1], SCALE_DTYPE) for part in with_scales]


def pages_per_context(config: Config) -> int:
    """Returns the pages of the longest request."""
    return -(-config.facts.max_model_len // config.cache.block_size)


@dataclass(frozen=True)
class PageSizes:
    """The bytes of a page and, with a `window`, of a window page; then also what decides the number of these.

    `num_steady`: those that a request uses between steps; `num_chunk`: the pages of the tokens of a step.
    `state_bytes`: those of a state slot, 0 without recurrent layers. `held`: the bytes of the layers that this process
    has, if it is one of several stages, which must count the same pages.
    """

    page_bytes: int
    window_bytes: int = 0
    window: int | None = None
    num_steady: int = 0
    num_chunk: int = 0
    max_num_seqs: int = 1
    pages_per_context: int = 1
    state_bytes: int = 0
    held: "PageSizes | None" = None

    @property
    def pages_per_state(self) -> int:
        """The pages that take as much memory as a state slot, or those of a context if pages take none."""
        return -(-self.state_bytes // self.page_bytes) if self.page_bytes else self.pages_per_context

    def count_states(self, num_pages: int) -> int:
        """Returns how many state slots a cache of `num_pages` pages has.

        Pages beyond those of one request of full length share the memory with them.
        """
        if not self.state_bytes:
            return 0
        most = max(0, num_pages - self.pages_per_context) // self.pages_per_state
        share = most // PAGES_TO_STATES if self.page_bytes else most
        return LEAST_STATES + max(min(most, self.max_num_seqs, MANY_ROWS), share)

    def count_window_pages(self, num_pages: int) -> int:
        """Returns how many window pages a cache of `num_pages` pages has; they suffice for any single request.

        They also suffice for as many requests of full length as its pages do. Beyond that they get a share of the
        memory, as requests may be shorter.
        """
        if self.window is None:
            return 0
        least = self.num_steady + self.num_chunk
        for_context = -(-num_pages * self.num_steady // self.pages_per_context)
        share = int(num_pages * self.page_bytes * MAX_WINDOW_RATIO) // self.window_bytes
        most = self.max_num_seqs * self.num_steady + self.num_chunk
        return min(num_pages, max(least, for_context, min(most, share)))

    def num_bytes(self, num_pages: int) -> int:
        """Returns the bytes of a cache of `num_pages` pages, its window pages and its state slots."""
        held = self.held or self
        num_state_bytes = self.count_states(num_pages) * held.state_bytes
        return num_pages * held.page_bytes + self.count_window_pages(num_pages) * held.window_bytes + num_state_bytes

    def fit(self, num_bytes: int) -> int:
        """Returns the number of pages of the largest cache of at most `num_bytes`, 0 if it holds no page."""
        page_bytes = (self.held or self).page_bytes
        if self.window is None and not self.state_bytes and page_bytes:
            return num_bytes // page_bytes
        most = num_bytes // page_bytes if page_bytes else self.max_num_seqs * self.pages_per_context
        return max(0, bisect_right(range(most + 1), num_bytes, key=self.num_bytes) - 1)


def size_pages(
    config: Config,
    model: ModelDescription,
    placement: Placement,
    limits: StepLimits,
    window: int | None,
    drafted_bytes: int,
) -> PageSizes:
    """Returns the bytes of the model's pages, of which `drafted_bytes` each are the draft model's part.

    Numbers of window pages and states follow from the bytes of all layers and no draft model, if there are stages.
    """
    page_size = config.cache.block_size

    def count(has_window: bool | None) -> int:
        return page_bytes(model, page_size, placement, has_window)

    sizes = PageSizes(
        count(None) + drafted_bytes,
        max_num_seqs=limits.max_num_seqs,
        pages_per_context=limits.num_pages,
        state_bytes=state_bytes(model, placement),
    )
    if window is not None:
        steady, chunk = count_steady(window, page_size), -(-limits.max_num_batched_tokens // page_size)
        sizes = replace(sizes, window_bytes=count(True), window=window, num_steady=steady, num_chunk=chunk)
        sizes = replace(sizes, page_bytes=count(False) + drafted_bytes)
    if model.held_layers is None:
        return sizes
    whole = size_pages(config, replace(model, held_layers=None), placement, limits, window, 0)
    return replace(whole, held=sizes)
