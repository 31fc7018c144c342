"""Slots with adapters of several ranks, NaN beyond them, and the outputs they must give, in float64.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters

RANKS = [[3, 0, 16], [0, 0, 0], [1, 7, 2], [20, 5, 11]]
"""By slot and segment; one adapter updates nothing."""


def make_slots(num_inputs: int, sizes: Sequence[int], dtype: torch.dtype, device: str, max_rank: int = 20) -> LoraSlots:
    """Returns slots for a linear layer whose segments have these sizes."""
    num_segments, num_outputs = len(sizes), sum(sizes)
    ranks = torch.tensor([row[:num_segments] for row in RANKS], dtype=torch.int32)
    a = torch.full((len(RANKS), num_segments, max_rank, num_inputs), float("nan"))
    b = torch.full((len(RANKS), max_rank, num_outputs), float("nan"))
    for slot, row in enumerate(ranks.tolist()):
        begin = 0
        for segment, (rank, size) in enumerate(zip(row, sizes, strict=True)):
            a[slot, segment, :rank] = torch.randn(rank, num_inputs) * num_inputs**-0.5
            b[slot, :rank, begin : begin + size] = torch.randn(rank, size)
            begin += size
    scales, ends = torch.rand(ranks.shape) + 0.5, torch.tensor(sizes).cumsum(0).int()
    return LoraSlots(*(part.to(device) for part in (a.to(dtype), b.to(dtype), ranks, scales, ends)))


def on_device(slots: Sequence[int], device: str) -> TokenAdapters:
    return TokenAdapters(torch.tensor(slots, dtype=torch.int32, device=device), len(RANKS))


def expect(x_TI: Tensor, lora: LoraSlots, slots: Sequence[int], out_TO: Tensor) -> Tensor:
    """Returns the outputs, token by token."""
    expected = out_TO.double().cpu()
    for token, slot in enumerate(slots):
        begin = 0
        for segment, end in enumerate(lora.ends.tolist()):
            rank = int(lora.ranks[slot, segment]) if slot >= 0 else 0
            a, b = lora.a[slot, segment, :rank].double().cpu(), lora.b[slot, :rank, begin:end].double().cpu()
            expected[token, begin:end] += float(lora.scales[slot, segment]) * (a @ x_TI[token].double().cpu()) @ b
            begin = end
    return expected
