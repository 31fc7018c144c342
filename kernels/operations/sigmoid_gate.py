"""The gate on the output of attention in Qwen3-Next and its successors.

Shape legend: T tokens, A values of all heads.
"""

from torch import Tensor

from kernels.dispatch import call


def sigmoid_gate(values_TA: Tensor, gate_TA: Tensor) -> Tensor:
    """Multiplies values by sigmoid(gate) in place and returns them. Rows of either may lie apart."""
    assert values_TA.shape == gate_TA.shape
    assert values_TA.dtype == gate_TA.dtype
    assert values_TA.stride(1) == gate_TA.stride(1) == 1
    call("sigmoid_gate", values_TA, sigmoid_gate_reference, values_TA, gate_TA)
    return values_TA


def sigmoid_gate_reference(values_TA: Tensor, gate_TA: Tensor) -> None:
    values_TA.copy_(values_TA.float() * gate_TA.float().sigmoid())
