"""Rounds the rows of a matrix to float8_e4m3fn with a scale per row: activations per token, weights per output.

Shape legend: R rows, I columns, P columns with their filling.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.paged_kv import MAX_CODES
from kernels.dispatch import call


def quantize_rows(x_RI: Tensor, num_padded: int, least_R: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns codes [R, P], whose filling is 0, and float32 scales [R]; a row's largest magnitude becomes the largest
    code. `least_R` has magnitudes that are in place of it if they are larger.

    The scale of a row with an element that is not finite is not finite.
    """
    return call("quantize_rows", x_RI, quantize_rows_reference, x_RI.contiguous(), num_padded, least_R)


def quantize_rows_reference(x_RI: Tensor, num_padded: int, least_R: Tensor | None) -> tuple[Tensor, Tensor]:
    wide_RI, code_dtype = x_RI.float(), torch.float8_e4m3fn
    largest_R = wide_RI.abs().amax(1)
    if least_R is not None:
        largest_R = largest_R.maximum(least_R.float())
    scale_R = largest_R / MAX_CODES[code_dtype]
    units_RI = wide_RI / torch.where(scale_R == 0, 1.0, scale_R)[:, None]
    return functional.pad(units_RI, (0, num_padded - x_RI.shape[1])).to(code_dtype), scale_R
