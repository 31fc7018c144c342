"""Puts the values of all heads of a token next to each other.

Shape legend: H heads, T tokens, V values of a head.
"""

from torch import Tensor

from kernels.dispatch import call


def join_heads(x_HTV: Tensor, out_TA: Tensor | None = None) -> Tensor:
    """Returns [T, H * V], possibly in `out_TA`."""
    assert x_HTV.is_contiguous()
    return call("join_heads", x_HTV, join_heads_reference, x_HTV, out_TA)


def join_heads_reference(x_HTV: Tensor, _out_TA: Tensor | None = None) -> Tensor:
    return x_HTV.transpose(0, 1).flatten(1)
