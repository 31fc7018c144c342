"""The experts that tokens of a step go to.

Shape legend: T tokens, X experts, K chosen experts of a token, R = T * K rows, sorted by expert, then by token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments.routing import Routing as Routing


@dataclass(frozen=True)
class Routes:
    """The routes of tokens, in memory that kernels read."""

    shares: Tensor
    """float32 [T, K]"""
    rows: Tensor
    """int32 [T, K]: the row of a token for each of its experts."""
    tokens: Tensor
    """int32 [R]: the token of each row."""
    ends: Tensor
    """int32 [X]: the end of each expert's rows."""

    @classmethod
    def take(cls, memory: Tensor, num_tokens: int, num_experts: int, num_chosen: int) -> "Routes":
        """Returns routes in int32 memory of at least X + 3 R."""
        num_rows, shape = num_tokens * num_chosen, (num_tokens, num_chosen)
        parts = [memory[begin : begin + num_rows] for begin in (0, num_rows, 2 * num_rows)]
        ends_X = memory[3 * num_rows : 3 * num_rows + num_experts]
        return cls(parts[0].view(torch.float32).view(shape), parts[1].view(shape), parts[2], ends_X)
