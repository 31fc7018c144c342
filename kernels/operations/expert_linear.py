"""Linear layers of experts whose weights are one: the outputs of one expert, then those of the next.

Shape legend: R rows, sorted by expert, I inputs, O outputs of an expert, X experts.

Biases are flat, [X * O]: those of one expert, then those of the next. Only the weights of experts with rows are read. A
row's outputs are those of the dense layer (`packed_linear.py` and the like): the same bits alone and in any batch.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.routes import Routes
from kernels.dispatch import call
from kernels.operations.packed_linear import packed_linear_reference

ExpertLinear = Callable[[Tensor, Routes, Tensor | None], Tensor]
"""Takes x [R, I], the routes, and where [R, O] may be put; returns [R, O]."""


def plain_experts(
    weight_OI: Tensor, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, out_RO: Tensor | None = None
) -> Tensor:
    """Without a kernel it waits for the routes, which decide what is computed: no step with it is captured."""
    return call("expert_plain_linear", x_RI, _plain_reference, weight_OI, bias_O, x_RI, routes, out_RO)


def _plain_reference(
    weight_OI: Tensor, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, _out_RO: Tensor | None
) -> Tensor:
    num_outputs = len(weight_OI) // len(routes.ends)

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor) -> Tensor:
        return functional.linear(x_NI, weight_OI[expert * num_outputs : (expert + 1) * num_outputs], bias_O)

    return by_expert(apply, bias_O, x_RI, routes)


def packed_experts(
    packed: Tensor, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, out_RO: Tensor | None = None
) -> Tensor:
    """`packed` is as in `packed_linear.py`; O is a multiple of 32, here and below."""
    return call("expert_packed_linear", x_RI, _packed_reference, packed, bias_O, x_RI, routes, out_RO)


def _packed_reference(
    packed: Tensor, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, _out_RO: Tensor | None
) -> Tensor:
    blocks = packed.unflatten(0, (len(routes.ends), -1))
    num_outputs = blocks.shape[1] * blocks.shape[3]

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor) -> Tensor:
        return packed_linear_reference(x_NI, blocks[expert], bias_O, num_outputs, None)

    return by_expert(apply, bias_O, x_RI, routes)


def by_expert(
    apply: Callable[[int, Tensor | None, Tensor], Tensor], bias_O: Tensor | None, x_RI: Tensor, routes: Routes
) -> Tensor:
    """Returns what `apply` computes for each expert with rows, from its number, its biases and its rows."""
    ends = [0, *routes.ends.tolist()]
    biases = [None] * (len(ends) - 1) if bias_O is None else bias_O.view(len(ends) - 1, -1)
    rows_of = enumerate(pairwise(ends))
    return torch.cat(
        [apply(expert, biases[expert], x_RI[begin:end]) for expert, (begin, end) in rows_of if end > begin]
    )
