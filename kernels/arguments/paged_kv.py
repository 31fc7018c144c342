"""One layer of the paged KV cache, as the kernels that write and read it see it.

Shape legend: S slots (pages * page size), G key/value heads, D head dimension, R rows, P pages a row (padded),
L positions of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

MAX_CODES = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The 8-bit formats of K and V, and the largest magnitude of each."""

SCALE_DTYPE = torch.bfloat16

MAX_FLOAT16 = 65504.0
"""Finite numbers that are larger are stored as this one."""


class InPlace(NamedTuple):
    """In place of a cache: the keys and values of the step's tokens stay next to the queries."""

    num_heads: int


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
    """bfloat16 [S, G], contiguous: what the codes in `keys` are multiplied by; `None` if `keys` holds no codes"""
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

    @cached_property
    def c_arguments(self) -> Mapping[str, int]:
        """The addresses of K, V and their scales, and what the C kernels must know of them, by its name there."""
        addresses = {name: part.data_ptr() for name, part in vars(self).items() if isinstance(part, Tensor)}
        return {**addresses, "is_float16": self.keys.dtype == torch.float16}

    def holds(self, dtype: torch.dtype) -> bool:
        """True if K and V of this dtype can be stored."""
        if self.key_scales is None and (self.keys.dtype, dtype) != (torch.float16, torch.float32):
            return self.keys.dtype == dtype
        return True

    def find_slots(self, page_tables_RP: Tensor, positions_RL: Tensor) -> Tensor:
        """Returns the slots (int64 [R, L]) of token positions, which must lie within the rows' pages."""
        pages_RL = page_tables_RP.gather(1, (positions_RL // self.page_size).long())
        return pages_RL.long() * self.page_size + positions_RL % self.page_size
