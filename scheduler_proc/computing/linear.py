"""Linear layers in the fastest form that the device offers.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]
"""[T, I] → [T, O]"""


def make_linear(weight_OI: Tensor, bias_O: Tensor | None) -> Linear:
    """Returns the layer; a caller that keeps no other reference to the weight has it in memory once.

    bfloat16 weights on a CPU are laid out for oneDNN here, once, and not in each call as `functional.linear` does.
    """
    if weight_OI.device.type == "cpu" and weight_OI.dtype == torch.bfloat16 and torch.backends.mkldnn.is_available():
        return _packed(weight_OI, bias_O)
    return lambda x_TI: functional.linear(x_TI, weight_OI, bias_O)


def _packed(weight_OI: Tensor, bias_O: Tensor | None) -> Linear:
    """The operators are those that torch's own compiler uses for CPUs (torch/_inductor/fx_passes/mkldnn_fusion.py)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI)
    apply = torch.ops.mkldnn._linear_pointwise
    return lambda x_TI: apply(x_TI, packed, bias_O, "none", [], "")
