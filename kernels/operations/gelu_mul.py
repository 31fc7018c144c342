"""The gated activation of Gemma's MLP.

Shape legend: T tokens, F MLP size. Formula: Shazeer, "GLU Variants Improve Transformer", 2020 (GEGLU).
"""

from torch import Tensor

from kernels.dispatch import call
from kernels.operations.gelu import gelu_reference


def gelu_mul(gate_up_TF2: Tensor, out_TF: Tensor | None = None) -> Tensor:
    """Returns gelu(gate) * up as [T, F], as `silu_mul` does, with the tanh approximation of GELU."""
    assert gate_up_TF2.shape[-1] % 2 == 0
    return call("gelu_mul", gate_up_TF2, gelu_mul_reference, gate_up_TF2.contiguous(), out_TF)


def gelu_mul_reference(gate_up_TF2: Tensor, _out_TF: Tensor | None = None) -> Tensor:
    gate_TF, up_TF = gate_up_TF2.chunk(2, dim=-1)
    return gelu_reference(gate_TF, "tanh").mul_(up_TF)
