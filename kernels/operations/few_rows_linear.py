"""A linear layer of a step with few tokens, with the norm before it and what follows it.

Shape legend: T tokens, I inputs, O outputs, H query heads, D head dimension, F MLP size, E embedding size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.few_rows import FEW_ROWS, AddTo, Best, Epilogue, Gate, PlainMatrix, RowNorm, StoreHeads
from kernels.dispatch import call, find_implementation
from kernels.gpu.fusions import is_fused
from kernels.operations.gelu_mul import gelu_mul_reference
from kernels.operations.rms_norm import rms_norm_reference
from kernels.operations.rotate_store import rotate_store_reference
from kernels.operations.sample import greedy_reference
from kernels.operations.silu_mul import silu_mul_reference


def takes_few_rows(x_TE: Tensor, fusion: str = "few_rows") -> bool:
    """True if steps of tokens like these are to use `few_rows_linear`: there is a kernel, and it is switched on."""
    is_taken = is_fused(fusion) and 0 < len(x_TE) <= FEW_ROWS and x_TE.dtype != torch.float16
    return is_taken and find_implementation("few_rows_linear", x_TE) is not None


def few_rows_linear(x_TI: Tensor, matrix: PlainMatrix, norm: RowNorm | None, then: Epilogue) -> Tensor:
    """Returns what `then` makes of norm(x) W^T + b: query heads [T, H, D], gated values [T, F], the stream
    [T, E], or tokens [T].

    The kernel scales by the norm after the product, which rounds once less, and not in float16, where inputs that are
    not scaled may be too large.
    """
    assert x_TI.shape[1] == matrix.weight.shape[1]
    assert x_TI.dtype == matrix.weight.dtype
    return call("few_rows_linear", x_TI, few_rows_linear_reference, x_TI, matrix, norm, then)


def find_best_tokens(x_TI: Tensor, weight_OI: Tensor | None) -> Tensor | None:
    """Returns the likeliest token of each row (int32 [T]) as `greedy` of x W^T; `None` if that takes the logits."""
    if weight_OI is None or not takes_few_rows(x_TI, "argmax"):
        return None
    return few_rows_linear(x_TI, PlainMatrix(weight_OI, None), None, Best())


def few_rows_linear_reference(x_TI: Tensor, matrix: PlainMatrix, norm: RowNorm | None, then: Epilogue) -> Tensor:
    """The parts that one kernel does together."""
    normed_TI = x_TI if norm is None else rms_norm_reference(x_TI, norm.weight, norm.eps, None)
    out_TO = functional.linear(normed_TI, matrix.weight, matrix.bias)
    match then:
        case StoreHeads(cache, tables, positions, slots, norms):
            heads_TAD = out_TO.view(len(x_TI), -1, cache.head_dim)
            return rotate_store_reference(heads_TAD, cache, tables, positions, slots, norms)
        case Gate(kind):
            return silu_mul_reference(out_TO) if kind == "silu" else gelu_mul_reference(out_TO, kind=kind)
        case AddTo(residual_TE):
            return residual_TE.add_(out_TO)
        case Best():
            return greedy_reference(out_TO)
