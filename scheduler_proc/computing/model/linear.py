"""Linear layers, computed by the fastest kernel that the device offers.

Shape legend: T tokens, I inputs, O outputs.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.gelu import GeluKind, gelu
from kernels.packed_linear import PackedWeight, pack_where_faster, packed_linear
from kernels.quantized_linear import QuantizedWeight, quantized_linear, sum_magnitudes
from scheduler_proc.computing.parallel import ParallelGroup


class Linear(Protocol):
    """A linear layer, ready to be applied."""

    def __call__(self, x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
        """Returns [T, O], in `out_TO` where the kernel can put it there."""
        ...


GELU_ALGORITHMS = {"tanh": "tanh", "exact": "none"}
"""The names of oneDNN's operator for the kinds of `gelu`."""


def make_linear(
    weight_OI: Tensor | QuantizedWeight | PackedWeight, bias_O: Tensor | None, activation: GeluKind | None = None
) -> Linear:
    """Returns the layer, with a GELU after it where `activation` names one.

    A caller that keeps no other reference to the weight has it in memory once. bfloat16 weights on a CPU are laid out
    for the C kernel, or else for oneDNN, here, once, and not in each call as `functional.linear` does; the GELU is part
    of the same product there.
    """
    if isinstance(weight_OI, QuantizedWeight):
        return _quantized(weight_OI, bias_O, activation)
    weight_OI = pack_where_faster(weight_OI)
    if isinstance(weight_OI, PackedWeight):
        return _on_kernel(weight_OI, bias_O, activation)
    if weight_OI.device.type == "cpu" and weight_OI.dtype == torch.bfloat16 and onednn_has_bfloat16():
        return on_onednn(weight_OI, bias_O, activation)
    if activation is None:
        return lambda x_TI, _=None: functional.linear(x_TI, weight_OI, bias_O)
    return lambda x_TI, _=None: gelu(functional.linear(x_TI, weight_OI, bias_O), activation)


def make_row_parallel(
    weight_OI: Tensor | QuantizedWeight | PackedWeight, bias_O: Tensor | None, parallel: ParallelGroup
) -> Linear:
    """Returns a layer of which each rank has some of the inputs; it returns the whole sum on all of them."""
    bias_O = None if parallel.rank else bias_O
    if parallel.size > 1 and isinstance(weight_OI, QuantizedWeight) and weight_OI.bits == 8:
        return _on_part_of_token(weight_OI, bias_O, parallel)
    layer = make_linear(weight_OI, bias_O)
    if parallel.size == 1:
        return layer
    return lambda x_TI, out_TO=None: parallel.all_reduce(layer(x_TI, out_TO))


def _on_part_of_token(weight: QuantizedWeight, bias_O: Tensor | None, parallel: ParallelGroup) -> Linear:
    """The ranks add up the magnitudes of what each has of a token, which has one scale."""
    whole_inputs = weight.num_inputs * parallel.size

    def apply(x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
        mean_T = parallel.all_reduce(sum_magnitudes(x_TI)) / whole_inputs
        return parallel.all_reduce(quantized_linear(x_TI, weight, bias_O, None, out_TO, mean_T))

    return apply


def onednn_has_bfloat16() -> bool:
    """Tells whether oneDNN multiplies bfloat16 on this processor: it needs AVX-512, or AVX-NE-CONVERT."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _quantized(weight: QuantizedWeight, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
    if activation == "exact":
        return lambda x_TI, out_TO=None: gelu(quantized_linear(x_TI, weight, bias_O, None, out_TO), "exact")
    return lambda x_TI, out_TO=None: quantized_linear(x_TI, weight, bias_O, activation, out_TO)


def _on_kernel(weight: PackedWeight, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
    packed, num_outputs = weight.packed, weight.num_outputs
    if activation == "exact":
        return lambda x_TI, out_TO=None: gelu(packed_linear(x_TI, packed, bias_O, num_outputs, None, out_TO), "exact")
    return lambda x_TI, out_TO=None: packed_linear(x_TI, packed, bias_O, num_outputs, activation, out_TO)


def on_onednn(weight_OI: Tensor, bias_O: Tensor | None, activation: GeluKind | None = None) -> Linear:
    """The operators are those that torch's own compiler uses for CPUs (torch/_inductor/fx_passes/mkldnn_fusion.py)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI)
    apply = torch.ops.mkldnn._linear_pointwise.default
    if activation is None:
        return lambda x_TI, _=None: apply(x_TI, packed, bias_O, "none", [], "")
    algorithm = GELU_ALGORITHMS[activation]
    return lambda x_TI, _=None: apply(x_TI, packed, bias_O, "gelu", [], algorithm)
