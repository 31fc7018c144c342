"""Linear layers of experts whose weights are one: the outputs of one expert, then those of the next.

Shape legend: R rows, sorted by expert, I inputs, O outputs of an expert, X experts.

Biases are flat, [X * O]: those of one expert, then those of the next. Only the weights of experts with rows are read. A
row's outputs are those of the dense layer (`packed_linear.py` and the like): the same bits alone and in any batch.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.routes import Routes
from kernels.dispatch import call
from kernels.operations.packed_linear import packed_linear_reference

ExpertLinear = Callable[[Tensor, Routes, Tensor | None], Tensor]
"""Takes x [R, I], the routes, and where [R, O] may be put; returns [R, O]."""


DenseLinear = Callable[[int, Tensor | None, Tensor, Tensor | None], Tensor]
"""The layer of one expert: takes its number, its biases, x of its rows [N, I], and their means; returns [N, O]."""


def expert_operation(name: str, split: Callable[[Any, int], DenseLinear]) -> Callable[..., Tensor]:
    """Returns an operation on (weight, biases, x [R, I], routes, optional room for the result [R, O], optional means).

    `name` is that of its kernel. For the reference, `split` returns the layers of a weight of a number of experts.
    Means [R] are as in `block_linear`.
    """

    def reference(
        weight: Any, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, _out: Tensor | None, mean_R: Tensor | None
    ) -> Tensor:
        return _by_expert(split(weight, len(routes.ends)), bias_O, x_RI, routes, mean_R)

    def operation(
        weight: Any,
        bias_O: Tensor | None,
        x_RI: Tensor,
        routes: Routes,
        out_RO: Tensor | None = None,
        mean_R: Tensor | None = None,
    ) -> Tensor:
        return call(name, x_RI, reference, weight, bias_O, x_RI, routes, out_RO, mean_R)

    return operation


def _split_plain(weight_OI: Tensor, num_experts: int) -> DenseLinear:
    weight_XOI = weight_OI.unflatten(0, (num_experts, -1))
    return lambda expert, bias_O, x_NI, _: functional.linear(x_NI, weight_XOI[expert], bias_O)


def _split_packed(packed: Tensor, num_experts: int) -> DenseLinear:
    blocks = packed.unflatten(0, (num_experts, -1))
    num_outputs = blocks.shape[1] * blocks.shape[3]
    return lambda expert, bias_O, x_NI, _: packed_linear_reference(x_NI, blocks[expert], bias_O, num_outputs, None)


plain_experts = expert_operation("expert_plain_linear", _split_plain)
"""Without a kernel it waits for the routes, which decide what is computed: no step with it is captured."""

packed_experts = expert_operation("expert_packed_linear", _split_packed)
"""The weight is as in `packed_linear.py`; O is a multiple of 32, here and in `expert_codes.py`."""


def _by_expert(
    apply: DenseLinear, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, mean_R: Tensor | None
) -> Tensor:
    """Returns what `apply` computes for each expert with rows."""
    ends = [0, *routes.ends.tolist()]
    biases = [None] * (len(ends) - 1) if bias_O is None else bias_O.view(len(ends) - 1, -1)
    parts: list[Tensor] = []
    for expert, (begin, end) in enumerate(pairwise(ends)):
        mean_N = None if mean_R is None else mean_R[begin:end]
        if end > begin:
            parts.append(apply(expert, biases[expert], x_RI[begin:end], mean_N))
    return torch.cat(parts)
