"""The Triton kernel of `look_up_planes`, which also dequantizes neighbouring outputs.

Shape legend: R rows, T tokens, I inputs, O outputs of a program, W words of codes: the inputs of a group.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.code_planes import CodePlanes
from kernels.gpu.launch_table import find_launch
from kernels.gpu.plane_codes import NUM_FIELDS, decode, load_scale, load_words, planes_of


def look_up_planes(planes: CodePlanes, row_T: Tensor, dtype: torch.dtype) -> Tensor:
    out_TI = torch.empty(len(row_T), planes.num_inputs, dtype=dtype, device=row_T.device)
    _dequantize(planes, row_T, 0, out_TI)
    return out_TI


def dequantize_slice(planes: CodePlanes, first_output: int, out_RI: Tensor) -> None:
    """Writes the values of the outputs from `first_output` on."""
    _dequantize(planes, None, first_output, out_RI)


def _dequantize(planes: CodePlanes, row_R: Tensor | None, first_output: int, out_RI: Tensor) -> None:
    assert out_RI.is_contiguous()
    launch = find_launch("look_up_planes")
    dequantize[(triton.cdiv(len(out_RI), launch["BLOCK_O"]), planes.num_spans)](
        *planes_of(planes),
        out_RI if row_R is None else row_R,
        out_RI,
        first_output,
        len(out_RI),
        planes.num_inputs,
        planes.num_outputs,
        HAS_ROWS=row_R is not None,
        FORM=planes.form,
        **launch,
    )


@triton.jit(do_not_specialize=["first_output", "num_rows", "num_outputs"], do_not_specialize_on_alignment=["rows"])
def dequantize(
    low,
    high,
    scales,
    scale_factors,
    minimums,
    minimum_factors,
    table,
    rows,
    out,
    first_output,
    num_rows,
    num_inputs,
    num_outputs,
    HAS_ROWS: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """A program writes one span of `BLOCK_O` rows."""
    place_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    span = tl.program_id(1)
    is_row_O = place_O < num_rows
    if HAS_ROWS:
        output_O = tl.load(rows + place_O, mask=is_row_O, other=0).to(tl.int32)
    else:
        output_O = first_output + tl.minimum(place_O, num_rows - 1)
    row_O = output_O.to(tl.int64)
    num_words = tl.num_programs(1) * FORM.group
    low_OW, high_OW = load_words(low, high, row_O, num_words, span, FORM)
    for field in tl.static_range(NUM_FIELDS):
        group = span * NUM_FIELDS + field
        code_OW = decode(low_OW, high_OW, low, table, row_O, num_words, span, field, FORM, tl.float32)
        scale_O = load_scale(scales, scale_factors, span, output_O, num_outputs, field, FORM, FORM.has_scale_factors)
        value_OW = code_OW * scale_O[:, None]
        if FORM.has_minimums:
            minimum_O = load_scale(
                minimums, minimum_factors, span, output_O, num_outputs, field, FORM, FORM.has_minimum_factors
            )
            value_OW -= minimum_O[:, None]
        input_W = group * FORM.group + tl.arange(0, FORM.group)
        out_OW = out + place_O.to(tl.int64)[:, None] * num_inputs + input_W[None, :]
        tl.store(out_OW, value_OW.to(out.dtype.element_ty), mask=is_row_O[:, None] & (input_W < num_inputs)[None, :])
