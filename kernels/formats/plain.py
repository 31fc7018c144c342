"""A weight as a plain tensor: the format of norms, biases, and matrices without a better format.

Shape legend: T tokens, I inputs, O outputs.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.huge_memory import HUGE_PAGE
from kernels.cpu.huge_pages import empty_huge
from kernels.dispatch import is_on_cpu
from kernels.formats.weight_format import Linear, Ranks, Rows, Weight, WeightFormat
from kernels.operations.expert_linear import ExpertLinear, plain_experts
from kernels.operations.gelu import GeluKind, gelu
from kernels.operations.plain_linear import plain_linear

GELU_ALGORITHMS = {"tanh": "tanh", "exact": "none"}
"""oneDNN's names of the kinds of `gelu`."""


class PlainFormat(WeightFormat):
    name = "plain"

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return prod(shape) * dtype.itemsize

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> "PlainWeight":
        if is_on_cpu(device) and torch.Size(shape).numel() * dtype.itemsize >= HUGE_PAGE:
            return PlainWeight(empty_huge(shape, dtype))
        return PlainWeight(torch.empty(shape, dtype=dtype, device=device))

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> "PlainWeight":
        assert not numbers
        return PlainWeight(stored)


PLAIN = PlainFormat()


@dataclass(frozen=True)
class PlainWeight(Weight):
    """A parameter of any shape; a matrix is [O, I]."""

    stored: Tensor
    format = PLAIN
    numbers = ()

    @property
    def matrix(self) -> Tensor | None:
        return None if self._is_for_onednn else self.stored

    @property
    def _is_for_onednn(self) -> bool:
        weight = self.stored
        return is_on_cpu(weight.device) and weight.dtype == torch.bfloat16 and onednn_has_bfloat16()

    def set_rows(self, first_row: int, rows: Rows) -> None:
        assert isinstance(rows, Tensor)
        target = self.stored[first_row : first_row + len(rows)]
        target.copy_(rows.reshape(target.shape))

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """bfloat16 weights on a CPU are laid out for oneDNN here, once, and not in each call of `functional.linear`."""
        weight_OI = self.stored
        if self._is_for_onednn:
            return on_onednn(weight_OI, bias_O, activation)
        if activation is None:
            return lambda x_TI, _=None: plain_linear(x_TI, weight_OI, bias_O)
        return lambda x_TI, _=None: gelu(plain_linear(x_TI, weight_OI, bias_O), activation)

    def experts(self, bias_O: Tensor | None, ranks: Ranks | None = None) -> ExpertLinear:
        return partial(plain_experts, self.stored, bias_O)

    def look_up(self, row_T: Tensor) -> Tensor:
        return functional.embedding(row_T, self.stored)


def onednn_has_bfloat16() -> bool:
    """True if oneDNN multiplies bfloat16 on this processor, which needs AVX-512 or AVX-NE-CONVERT."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def on_onednn(weight_OI: Tensor, bias_O: Tensor | None, activation: GeluKind | None = None) -> Linear:
    """The operators are those that torch's own compiler uses for CPUs (torch/_inductor/fx_passes/mkldnn_fusion.py)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI)
    apply = torch.ops.mkldnn._linear_pointwise.default
    if activation is None:
        return lambda x_TI, _=None: apply(x_TI, packed, bias_O, "none", [], "")
    algorithm = GELU_ALGORITHMS[activation]
    return lambda x_TI, _=None: apply(x_TI, packed, bias_O, "gelu", [], algorithm)
