"""The bytes of pages, and how many window pages a cache gets with its pages.

Windowed layers have window pages of their own (`scheduler_proc/deciding/pages/window_pages.py`).
"""

from bisect import bisect_right
from dataclasses import dataclass

from kernels.arguments.paged_kv import SCALE_DTYPE
from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement

MAX_WINDOW_RATIO = 2 / 3
"""The maximum bytes of window pages, as a share of those of pages, unless a request of full length needs more."""


def page_bytes(model: ModelDescription, page_size: int, placement: Placement, has_window: bool | None = None) -> int:
    """Returns the bytes of `page_size` tokens in all layers with K and V, or in those with (or without) a window."""
    itemsize, scale_bytes = placement.kv_dtype.itemsize, SCALE_DTYPE.itemsize if placement.kv_codes else 0
    return sum(
        2 * page_size * attention.num_kv_heads * (attention.head_dim * itemsize + scale_bytes)
        for attention in model.attentions
        if attention.kv_layer is None and has_window in (None, attention.window is not None)
    )


def pages_per_context(config: Config) -> int:
    """Returns the pages of the longest request."""
    return -(-config.facts.max_model_len // config.cache.block_size)


def find_window(config: Config, model: ModelDescription) -> int | None:
    """Returns the largest window of the model; `None` if no request is long enough to free window pages.

    Raises `BootError` for lower tiers, which do not keep them.
    """
    window = max((attention.window or 0 for attention in model.attentions), default=0)
    if not window or count_steady(window, config.cache.block_size) >= pages_per_context(config):
        return None
    if config.cache.kv_disk or config.cache.kv_offload_gb:
        raise BootError(
            f"--kv-disk and --kv-offload-gb do not keep the pages of layers with a window; this model's is {window} "
            "tokens"
        )
    return window


def count_steady(window: int, page_size: int) -> int:
    """Returns the maximum number of window pages that a request uses between two steps."""
    return 1 + -(-(window - 1) // page_size)


@dataclass(frozen=True)
class PageSizes:
    """The bytes of a page and, with a `window`, of a window page; then also what decides the number of these.

    `num_steady`: those that a request uses between steps; `num_chunk`: the pages of the tokens of a step.
    """

    page_bytes: int
    window_bytes: int = 0
    window: int | None = None
    num_steady: int = 0
    num_chunk: int = 0
    max_num_seqs: int = 1
    pages_per_context: int = 1

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
        """Returns the bytes of a cache of `num_pages` pages and its window pages."""
        return num_pages * self.page_bytes + self.count_window_pages(num_pages) * self.window_bytes

    def fit(self, num_bytes: int) -> int:
        """Returns the number of pages of the largest cache of at most `num_bytes`."""
        if self.window is None:
            return num_bytes // self.page_bytes
        most = num_bytes // self.page_bytes if self.page_bytes else self.max_num_seqs * self.pages_per_context
        return bisect_right(range(most + 1), num_bytes, key=self.num_bytes) - 1
