"""K and V as 8-bit codes with a scale for each token and head.

Shape legend: T tokens, G key/value heads, D head dimension; `...` whatever comes before D.
"""

import torch
from torch import Tensor

from kernels.arguments.paged_kv import MAX_CODES, SCALE_DTYPE


def quantize_heads(x_TGD: Tensor, code_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns the codes [T, G, D] and their scales [T, G]; a head's largest magnitude becomes the largest code.

    The scale of a head with an element that is not finite is not finite.
    """
    wide_TGD, max_code = x_TGD.float(), MAX_CODES[code_dtype]
    scale_TG = (wide_TGD.abs().amax(-1) / max_code).to(SCALE_DTYPE)
    unit_TG = scale_TG.float()
    code_TGD = wide_TGD / torch.where(unit_TG > 0, unit_TG, 1.0)[..., None]
    if code_dtype == torch.int8:
        code_TGD = code_TGD.round().clamp(-max_code, max_code).nan_to_num()
    return code_TGD.to(code_dtype), scale_TG


def gather_heads(values: Tensor, scales: Tensor | None, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the entries of K or V [..., D] at `index` of the first dimension, codes times their scales."""
    if scales is None:
        return values.index_select(0, index).to(dtype)
    # As bytes: torch does not gather every 8-bit format.
    codes = values.view(torch.uint8).index_select(0, index).view(values.dtype)
    return (codes.float() * scales.index_select(0, index).float()[..., None]).to(dtype)
