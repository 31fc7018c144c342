"""The gated activation of Llama's MLP.

Shape legend: T tokens, F MLP size. Formula: Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from torch import Tensor
from torch.nn import functional

from kernels.dispatch import call


def silu_mul(gate_up_TF2: Tensor, out_TF: Tensor | None = None) -> Tensor:
    """Returns silu(gate) * up as [T, F]; `gate_up_TF2` [T, 2F] holds the gate in its first half and may be overwritten.

    The result may be written to `out_TF`; otherwise it is a new tensor.
    """
    assert gate_up_TF2.shape[-1] % 2 == 0
    return call("silu_mul", gate_up_TF2, silu_mul_reference, gate_up_TF2.contiguous(), out_TF)


def silu_mul_reference(gate_up_TF2: Tensor, _out_TF: Tensor | None = None) -> Tensor:
    gate_TF, up_TF = gate_up_TF2.chunk(2, dim=-1)
    return functional.silu(gate_TF).mul_(up_TF)
