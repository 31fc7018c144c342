"""Blocks whose values are as large as a model's weights are: random codes, scales around 0.01."""

import torch
from torch import Tensor

from kernels.arguments.block_forms import FLOAT_FORMS, FORMS, INTEGER_FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.arguments.code_planes import CodePlanes
from kernels.operations.code_planes import num_plane_bytes, set_planes, view_planes
from tests.kernels.operations.block_forms import random_blocks

NAN_CODE = 0x7F
"""The code of float8_e4m3fn that is no number, with either sign."""


def plausible_rows(form: str, num_outputs: int, num_inputs: int) -> BlockRows:
    blocks = random_blocks(form, num_outputs, num_inputs, seed=num_inputs).view(-1, FORMS[form].num_bytes)
    generator = torch.Generator().manual_seed(len(blocks))

    def draw(dtype: torch.dtype) -> Tensor:
        return (0.01 * torch.randn(len(blocks), 1, generator=generator)).to(dtype).view(torch.uint8)

    for first_byte in FORMS[form].halves:
        blocks[:, first_byte : first_byte + 2] = draw(torch.float16)
    match form:
        case "MXFP4":
            blocks[:, 0] = 110 + blocks[:, 0] % 16
        case _ if form in INTEGER_FORMS:
            blocks[:, :4] = draw(torch.float32)
        case _ if form in FLOAT_FORMS:
            blocks[:, :4] = draw(torch.float32)
            blocks[:, 4:][blocks[:, 4:] & NAN_CODE == NAN_CODE] = 0
        case _:
            pass
    return BlockRows(blocks.view(num_outputs, -1), form, num_inputs)


def make_planes(rows: BlockRows) -> CodePlanes:
    """Returns the planes of whole rows, on the rows' device."""
    num_outputs = len(rows.blocks)
    num_bytes = num_plane_bytes(rows.form, num_outputs, rows.num_inputs)
    stored = torch.empty(num_bytes, dtype=torch.uint8, device=rows.blocks.device)
    planes = view_planes(stored, rows.form, num_outputs, rows.num_inputs)
    set_planes(planes, 0, rows)
    return planes
