"""The gated activation of Gemma's MLP.

Shape legend: T tokens, F MLP size. Formula: Shazeer, "GLU Variants Improve Transformer", 2020 (GEGLU).
"""

from torch import Tensor

from kernels.dispatch import call
from kernels.operations.gelu import GeluKind, gelu_reference


def gelu_mul(
    gate_up: Tensor, out_TF: Tensor | None = None, up_TF: Tensor | None = None, kind: GeluKind = "tanh"
) -> Tensor:
    """Returns gelu(gate) * up as [T, F], as `silu_mul` does, with the GELU of this kind.

    With `up_TF`, whose rows may lie apart, `gate_up` is the gate alone.
    """
    assert up_TF is not None or gate_up.shape[-1] % 2 == 0
    assert up_TF is None or (up_TF.shape == gate_up.shape and up_TF.stride(1) == 1)
    return call("gelu_mul", gate_up, gelu_mul_reference, gate_up.contiguous(), out_TF, up_TF, kind)


def gelu_mul_reference(
    gate_up: Tensor, _out_TF: Tensor | None = None, up_TF: Tensor | None = None, kind: GeluKind = "tanh"
) -> Tensor:
    gate_TF, up_TF = gate_up.chunk(2, dim=-1) if up_TF is None else (gate_up, up_TF)
    return gelu_reference(gate_TF, kind).mul_(up_TF)
