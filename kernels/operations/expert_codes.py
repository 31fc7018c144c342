"""Linear layers of experts, as in `expert_linear.py`, whose weights are codes: int8, or blocks, packed or in planes.

Shape legend: R rows, sorted by expert, I inputs, O outputs of an expert, X experts.
"""

import torch
from torch import Tensor

from kernels.arguments.code_planes import CodePlanes
from kernels.arguments.codes import Codes
from kernels.arguments.packed_blocks import PackedBlocks
from kernels.arguments.routes import Routes
from kernels.dispatch import call
from kernels.operations.block_linear import block_linear_reference
from kernels.operations.code_planes import take_outputs
from kernels.operations.expert_linear import by_expert
from kernels.operations.planes_linear import planes_linear_reference
from kernels.operations.quantized_linear import quantized_linear_reference


def quantized_experts(
    weight: Codes, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, out_RO: Tensor | None = None
) -> Tensor:
    return call("expert_quantized_linear", x_RI, _quantized_reference, weight, bias_O, x_RI, routes, out_RO)


def _quantized_reference(
    weight: Codes, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, _out_RO: Tensor | None
) -> Tensor:
    num_experts = len(routes.ends)
    blocks = weight.packed.unflatten(0, (num_experts, -1))

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor) -> Tensor:
        own = Codes(blocks[expert], weight.num_outputs // num_experts, weight.num_inputs)
        return quantized_linear_reference(x_NI, own, bias_O, None)

    return by_expert(apply, bias_O, x_RI, routes)


def block_experts(
    weight: PackedBlocks, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, out_RO: Tensor | None = None
) -> Tensor:
    """The weight has one segment."""
    assert len(weight.segments) == 1
    return call("expert_block_linear", x_RI, _block_reference, weight, bias_O, x_RI, routes, out_RO)


def _block_reference(
    weight: PackedBlocks, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, _out_RO: Tensor | None
) -> Tensor:
    num_experts, ((form, num_outputs),) = len(routes.ends), weight.segments
    bytes_XB = weight.stored.view(num_experts, -1)

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor) -> Tensor:
        own = PackedBlocks(bytes_XB[expert], ((form, num_outputs // num_experts),), weight.num_inputs)
        return block_linear_reference(x_NI, own, bias_O, None)

    return by_expert(apply, bias_O, x_RI, routes)


def planes_experts(
    planes: CodePlanes, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, out_RO: Tensor | None = None
) -> Tensor:
    return call("expert_planes_linear", x_RI, _planes_reference, planes, bias_O, x_RI, routes, out_RO)


def _planes_reference(
    planes: CodePlanes, bias_O: Tensor | None, x_RI: Tensor, routes: Routes, _out_RO: Tensor | None
) -> Tensor:
    num_outputs = planes.num_outputs // len(routes.ends)

    def apply(expert: int, bias_O: Tensor | None, x_NI: Tensor) -> Tensor:
        output_O = torch.arange(expert * num_outputs, (expert + 1) * num_outputs, device=x_NI.device)
        out_NO = x_NI.new_empty(len(x_NI), num_outputs)
        planes_linear_reference(x_NI, take_outputs(planes, output_O), bias_O, out_NO)
        return out_NO

    return by_expert(apply, bias_O, x_RI, routes)
