"""The low-rank updates of a linear layer (LoRA, arXiv:2106.09685) on the device: a slot for each adapter.

Shape legend: S slots, G segments, R largest rank, I inputs, O outputs, T tokens.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class LoraSlots:
    """A segment is a stretch of outputs with an update of its own: a fused linear has several.

    Values beyond the rank of a slot's segment are undefined, and never read.
    """

    a: Tensor
    """[S, G, R, I]"""
    b: Tensor
    """[S, R, O]: B transposed, of all segments."""
    ranks: Tensor
    """int32 [S, G]: 0 if the adapter does not update the segment."""
    scales: Tensor
    """float32 [S, G]"""
    ends: Tensor
    """int32 [G]: the first output after each segment."""

    def check(self, x_TI: Tensor, out_TO: Tensor) -> None:
        num_slots, num_segments, max_rank, num_inputs = self.a.shape
        assert x_TI.shape[1] == num_inputs
        assert self.b.shape == (num_slots, max_rank, out_TO.shape[1])
        assert self.ranks.shape == self.scales.shape == (num_slots, num_segments)
        assert self.ends.shape == (num_segments,)
        assert self.ranks.dtype == self.ends.dtype == torch.int32
        assert self.scales.dtype == torch.float32
        assert self.a.dtype == self.b.dtype == x_TI.dtype == out_TO.dtype
        assert all(each.is_contiguous() for each in (self.a, self.b, self.ranks, self.scales))


@dataclass(frozen=True)
class TokenAdapters:
    """The slot of each token's adapter."""

    slots: Tensor
    """int32 [T]; -1: none"""
    num_slots: int

    @cached_property
    def order(self) -> Tensor:
        """The tokens (int64 [T]), those of a slot one after another; first those without an adapter."""
        return torch.argsort(self.slots, stable=True)

    @cached_property
    def starts(self) -> Tensor:
        """Where each slot's tokens begin in this order, and where the last one's end (int64 [S + 1])."""
        each = torch.arange(self.num_slots + 1, dtype=torch.int32, device=self.slots.device)
        return torch.searchsorted(self.slots[self.order], each)
