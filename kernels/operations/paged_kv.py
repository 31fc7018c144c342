"""One layer of the paged KV cache, as the kernels that write and read it see it.

Shape legend: S slots (pages * page size), G key/value heads, D head dimension, R rows, P pages a row (padded),
L positions of a row.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels.cpu.library import MAX_HEAD_DIM, MAX_QUERIES_A_HEAD, Kernel, find_kernel
from kernels.operations.quantized_kv import MAX_CODES


@dataclass(frozen=True)
class PagedKV:
    """K and V by slot; page p holds the slots from `p * page_size` on.

    Slots that were never written are uninitialised.
    """

    keys: Tensor
    """[S, G, D], contiguous"""
    values: Tensor
    """[S, G, D], contiguous"""
    page_size: int
    key_scales: Tensor | None = None
    """bfloat16 [S, G], contiguous: what the codes in `keys` are multiplied by; `None`: `keys` are no codes"""
    value_scales: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.keys.shape == self.values.shape
        assert self.keys.dtype == self.values.dtype
        assert self.keys.is_contiguous()
        assert self.values.is_contiguous()
        assert self.keys.shape[0] % self.page_size == 0
        for scales in (self.key_scales, self.value_scales):
            assert (scales is None) == (self.keys.dtype not in MAX_CODES)
            assert scales is None or (scales.shape == self.keys.shape[:2] and scales.is_contiguous())

    # A cache lives as long as its process, and each step asks each layer's for these.
    @cached_property
    def num_heads(self) -> int:
        return self.keys.shape[1]

    @cached_property
    def head_dim(self) -> int:
        return self.keys.shape[2]

    @property
    def tensors(self) -> list[Tensor]:
        """All that a page consists of."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return [part for part in parts if part is not None]

    @cached_property
    def addresses(self) -> tuple[int | None, ...]:
        """What C kernels are given: K, V and their scales."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return tuple(None if part is None else part.data_ptr() for part in parts)

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether K and V of this dtype can be stored."""
        return self.key_scales is not None or self.keys.dtype == dtype

    def find_slots(self, page_tables_RP: Tensor, positions_RL: Tensor) -> Tensor:
        """Returns the slots (int64 [R, L]) of token positions, which must lie within the rows' pages."""
        pages_RL = page_tables_RP.gather(1, (positions_RL // self.page_size).long())
        return pages_RL.long() * self.page_size + positions_RL % self.page_size


def find_cache_kernel(name: str, x: Tensor, cache: PagedKV) -> Kernel | None:
    """Returns the C kernel of an operation on `cache` for tensors like `x`, None where there is none."""
    return None if cache.keys.dtype == torch.float8_e4m3fn else find_kernel(name, x)


def find_attention_kernel(name: str, query_THD: Tensor, cache: PagedKV, out_THD: Tensor) -> Kernel | None:
    """Returns the C kernel of an attention over `cache`, None where there is none for these shapes."""
    kernel = find_cache_kernel(name, query_THD, cache)
    if kernel is None or cache.head_dim > MAX_HEAD_DIM:
        return None
    if query_THD.shape[1] > MAX_QUERIES_A_HEAD * cache.num_heads:
        return None
    assert query_THD.stride()[1:] == (cache.head_dim, 1)
    assert out_THD.is_contiguous()
    return kernel
