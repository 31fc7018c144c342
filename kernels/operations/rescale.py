"""Multiplies, caps or adds to activations in place: what some families do between the parts of a model.

Shape legend: T tokens, E embedding size or vocabulary.
"""

from torch import Tensor

from kernels.dispatch import call


def rescale(x_TE: Tensor, factor: float = 1.0, added_TE: Tensor | None = None, softcap: float = 0.0) -> Tensor:
    """Returns x * factor + added, in the memory of x; or, with `softcap`, softcap * tanh(x * factor / softcap)."""
    assert added_TE is None or (not softcap and added_TE.shape == x_TE.shape and added_TE.dtype == x_TE.dtype)
    return call("rescale", x_TE, rescale_reference, x_TE, factor, added_TE, softcap)


def rescale_reference(x_TE: Tensor, factor: float, added_TE: Tensor | None, softcap: float) -> Tensor:
    if softcap:
        return x_TE.mul_(factor / softcap).tanh_().mul_(softcap)
    if factor != 1:
        x_TE.mul_(factor)
    return x_TE if added_TE is None else x_TE.add_(added_TE)
