"""The gated activation of gpt-oss' experts.

Shape legend: R rows, F inner values of an expert. Formula: the model card of gpt-oss ("a clamped SwiGLU with a residual
connection"), as in transformers.
"""

import torch
from torch import Tensor

from kernels.dispatch import call


def swiglu_oai(gate_up_RF2: Tensor, alpha: float, limit: float, out_RF: Tensor | None = None) -> Tensor:
    """Returns gate * sigmoid(alpha * gate) * (up + 1) as [R, F]; the gates are the first half of `gate_up_RF2`.

    Gates are at most `limit`, ups from -`limit` to `limit`. The result may be written to `out_RF`.
    """
    assert gate_up_RF2.shape[-1] % 2 == 0
    return call("swiglu_oai", gate_up_RF2, swiglu_oai_reference, gate_up_RF2.contiguous(), alpha, limit, out_RF)


def swiglu_oai_reference(gate_up_RF2: Tensor, alpha: float, limit: float, _out_RF: Tensor | None = None) -> Tensor:
    gate_RF, up_RF = gate_up_RF2.float().chunk(2, dim=-1)
    gate_RF, up_RF = gate_RF.clamp(max=limit), up_RF.clamp(-limit, limit)
    return (gate_RF * torch.sigmoid(alpha * gate_RF) * (up_RF + 1)).to(gate_up_RF2.dtype)
