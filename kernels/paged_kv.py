"""One layer of the paged KV cache, as the kernels that write and read it see it.

Shape legend: S slots (pages * page size), G key/value heads, D head dimension, R rows, P pages a row (padded),
L positions of a row.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PagedKV:
    """K and V by slot; page p holds the slots from `p * page_size` on. A slot that was never written holds anything."""

    keys: Tensor
    """[S, G, D], contiguous"""
    values: Tensor
    """[S, G, D], contiguous"""
    page_size: int

    def __post_init__(self) -> None:
        assert self.keys.shape == self.values.shape
        assert self.keys.dtype == self.values.dtype
        assert self.keys.is_contiguous()
        assert self.values.is_contiguous()
        assert self.keys.shape[0] % self.page_size == 0

    @property
    def num_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[2]

    def find_slots(self, page_tables_RP: Tensor, positions_RL: Tensor) -> Tensor:
        """Returns the slots (int64 [R, L]) of token positions, which must lie within the rows' pages."""
        pages_RL = page_tables_RP.gather(1, (positions_RL // self.page_size).long())
        return pages_RL.long() * self.page_size + positions_RL % self.page_size
