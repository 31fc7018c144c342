"""Linear layers of experts, as in `expert_linear.py`, whose weights are in blocks, packed or in planes.

Shape legend: R rows, sorted by expert, I inputs, O outputs of an expert, X experts.
"""

import torch
from torch import Tensor

from kernels.arguments.code_planes import CodePlanes
from kernels.arguments.packed_blocks import PackedBlocks
from kernels.operations.block_linear import block_linear_reference
from kernels.operations.code_planes import take_outputs
from kernels.operations.expert_linear import DenseLinear, expert_operation
from kernels.operations.planes_linear import planes_linear_reference


def _split_blocks(weight: PackedBlocks, num_experts: int) -> DenseLinear:
    ((form, num_outputs),), bytes_XB = weight.segments, weight.stored.view(num_experts, -1)

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor, mean_N: Tensor | None) -> Tensor:
        own = PackedBlocks(bytes_XB[expert], ((form, num_outputs // num_experts),), weight.num_inputs)
        return block_linear_reference(x_NI, own, bias_O, None, None, mean_N)

    return apply


def _split_planes(planes: CodePlanes, num_experts: int) -> DenseLinear:
    num_outputs = planes.num_outputs // num_experts

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor, _mean_N: Tensor | None) -> Tensor:
        output_O = torch.arange(expert * num_outputs, (expert + 1) * num_outputs, device=x_NI.device)
        out_NO = x_NI.new_empty(len(x_NI), num_outputs)
        planes_linear_reference(x_NI, take_outputs(planes, output_O), bias_O, out_NO)
        return out_NO

    return apply


planes_experts = expert_operation("expert_planes_linear", _split_planes)
block_experts = expert_operation("expert_block_linear", _split_blocks)
"""The weight has one segment."""
