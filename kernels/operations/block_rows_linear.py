"""A linear layer whose weight is rows of blocks as a GGUF file holds them.

Shape legend: T tokens, I inputs, O outputs.
"""

from torch import Tensor
from torch.nn import functional

from kernels.arguments.block_rows import BlockRows
from kernels.dispatch import call
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.gelu import GeluKind


def block_rows_linear(
    x_TI: Tensor,
    rows: BlockRows,
    bias_O: Tensor | None,
    activation: GeluKind | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU if `activation` names one.

    The result is in `out_TO` if that is given; its rows may be parts of longer ones.
    """
    assert x_TI.shape[1] == rows.num_inputs
    arguments = x_TI.contiguous(), rows, bias_O, activation, out_TO
    return call("block_rows_linear", x_TI, block_rows_linear_reference, *arguments)


def block_rows_linear_reference(
    x_TI: Tensor, rows: BlockRows, bias_O: Tensor | None, activation: GeluKind | None, out_TO: Tensor | None
) -> Tensor:
    bias = None if bias_O is None else bias_O.float()
    result_TO = functional.linear(x_TI.float(), dequantize_blocks(rows), bias)
    if activation is not None:
        result_TO = functional.gelu(result_TO, approximate="tanh" if activation == "tanh" else "none")
    return result_TO.to(x_TI.dtype) if out_TO is None else out_TO.copy_(result_TO)
