"""The Triton kernel of `swiglu_oai`."""

from torch import Tensor

from kernels.gpu.silu_mul import multiply


def swiglu_oai(gate_up_RF2: Tensor, alpha: float, limit: float, _out_RF: Tensor | None) -> Tensor:
    return multiply(gate_up_RF2, "swiglu_oai", alpha, limit)
