"""The Triton kernels of `planes_linear`, for few tokens; for many, cuBLAS multiplies with the dequantized weight.

Shape legend: T tokens, I inputs, O outputs; W words of codes: the inputs of a group.

A product of codes has an accumulator for each group, which is multiplied by the scales in float32: the weight is not
rounded. The inputs are cut into parts, so that also a weight with few outputs occupies all processors; a second kernel
adds up the parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.code_planes import CodePlanes
from kernels.gpu.key_blocks import PRECISION
from kernels.gpu.launch_table import MANY_PROGRAMS, find_launch, has_fixed_launches
from kernels.gpu.look_up_planes import dequantize_slice
from kernels.gpu.plane_codes import NUM_FIELDS, decode, load_scale, load_words, planes_of

MANY_TOKENS = 64
"""With more tokens than that the weight is dequantized, unless launches are fixed."""

SLICE_BYTES = 64 << 20
"""Memory of the dequantized outputs that are multiplied at a time, or of the parts that are added at a time."""


def planes_linear(x_TI: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor) -> None:
    num_tokens, num_outputs = out_TO.shape
    if not num_tokens:
        return
    if num_tokens > MANY_TOKENS and not has_fixed_launches():
        _multiply_values(x_TI, planes, bias_O, out_TO)
        return
    launch = find_launch("planes_linear", x_TI.itemsize)
    num_blocks = triton.cdiv(num_outputs, launch["BLOCK_O"])
    spans_a_part = triton.cdiv(planes.num_spans, min(planes.num_spans, triton.cdiv(MANY_PROGRAMS, num_blocks)))
    num_parts = triton.cdiv(planes.num_spans, spans_a_part)
    has_parts = num_parts > 1
    whole_tiles = SLICE_BYTES // (4 * num_parts * num_outputs) // launch["BLOCK_T"] * launch["BLOCK_T"]
    if has_parts and num_tokens > (most := max(MANY_TOKENS, whole_tiles)):
        for x, out in zip(x_TI.split(most), out_TO.split(most), strict=True):
            planes_linear(x, planes, bias_O, out)
        return
    sums = x_TI.new_empty(num_parts * num_tokens, num_outputs, dtype=torch.float32) if has_parts else out_TO
    multiply_codes[(num_blocks, num_parts, triton.cdiv(num_tokens, launch["BLOCK_T"]))](
        x_TI,
        *planes_of(planes),
        x_TI if bias_O is None else bias_O,
        sums,
        num_tokens,
        planes.num_inputs,
        num_outputs,
        planes.num_spans,
        spans_a_part,
        sums.stride(0),
        HAS_BIAS=bias_O is not None and not has_parts,
        FORM=planes.form,
        **launch,
    )
    if has_parts:
        sum_parts(sums, bias_O, out_TO)


def sum_parts(sums: Tensor, bias_O: Tensor | None, out_TO: Tensor) -> None:
    """Sets `out_TO` to the sum of its parts, [parts * T, O], and of the bias."""
    num_tokens, num_outputs = out_TO.shape
    launch = find_launch("planes_linear_sum")
    add_parts[(triton.cdiv(num_outputs, launch["BLOCK"]), num_tokens)](
        *(sums, sums if bias_O is None else bias_O, out_TO, num_tokens, num_outputs, len(sums) // num_tokens),
        out_TO.stride(0),
        HAS_BIAS=bias_O is not None,
        **launch,
    )


def _multiply_values(x_TI: Tensor, planes: CodePlanes, bias_O: Tensor | None, out_TO: Tensor) -> None:
    num_inputs, num_outputs = planes.num_inputs, planes.num_outputs
    num_rows = min(num_outputs, max(1, SLICE_BYTES // (num_inputs * x_TI.itemsize)))
    values_OI = x_TI.new_empty(num_rows, num_inputs)
    for first in range(0, num_outputs, num_rows):
        weight_OI, out = values_OI[: num_outputs - first], out_TO[:, first : first + num_rows]
        dequantize_slice(planes, first, weight_OI)
        if bias_O is None:
            torch.mm(x_TI, weight_OI.T, out=out)
        else:
            torch.addmm(bias_O[first : first + num_rows], x_TI, weight_OI.T, out=out)


@triton.jit
def multiply_spans(
    acc_OT, x_T, planes, output_O, num_inputs, num_outputs, num_spans, first_span, end_span, FORM: tl.constexpr
):
    """Returns `acc_OT` plus the products of these spans; `x_T` are the addresses of the tokens' inputs.

    `planes` are as `planes_of` returns them.
    """
    low, high, scales, scale_factors, minimums, minimum_factors, table = planes
    row_O = output_O.to(tl.int64)
    num_words = num_spans * FORM.group
    dtype: tl.constexpr = x_T.dtype.element_ty
    for span in range(first_span, end_span):
        low_OW, high_OW = load_words(low, high, row_O, num_words, span, FORM)
        for field in tl.static_range(NUM_FIELDS):
            group = span * NUM_FIELDS + field
            input_W = group * FORM.group + tl.arange(0, FORM.group)
            x_WT = tl.load(x_T[None, :] + input_W[:, None], mask=(input_W < num_inputs)[:, None], other=0.0)
            code_OW = decode(low_OW, high_OW, low, table, row_O, num_words, span, field, FORM, dtype)
            scale_O = load_scale(
                scales, scale_factors, span, output_O, num_outputs, field, FORM, FORM.has_scale_factors
            )
            acc_OT += tl.dot(code_OW, x_WT, input_precision=PRECISION) * scale_O[:, None]
            if FORM.has_minimums:
                minimum_O = load_scale(
                    minimums, minimum_factors, span, output_O, num_outputs, field, FORM, FORM.has_minimum_factors
                )
                ones_OW = tl.full(code_OW.shape, 1.0, dtype)
                acc_OT -= tl.dot(ones_OW, x_WT, input_precision=PRECISION) * minimum_O[:, None]
    return acc_OT


@triton.jit(
    do_not_specialize=["num_tokens", "num_outputs", "num_spans", "spans_a_part", "out_stride"],
    do_not_specialize_on_alignment=["out", "bias"],
)
def multiply_codes(
    x,
    low,
    high,
    scales,
    scale_factors,
    minimums,
    minimum_factors,
    table,
    bias,
    out,
    num_tokens,
    num_inputs,
    num_outputs,
    num_spans,
    spans_a_part,
    out_stride,
    HAS_BIAS: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Outputs and tokens beyond the last are computed as the last, and not stored."""
    output_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    part = tl.program_id(1)
    token_T = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    real_O = tl.minimum(output_O, num_outputs - 1)
    x_T = x + tl.minimum(token_T, num_tokens - 1) * num_inputs
    first = part * spans_a_part
    end = tl.minimum(first + spans_a_part, num_spans)
    planes = low, high, scales, scale_factors, minimums, minimum_factors, table
    acc_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    acc_OT = multiply_spans(acc_OT, x_T, planes, real_O, num_inputs, num_outputs, num_spans, first, end, FORM)
    if HAS_BIAS:
        acc_OT += tl.load(bias + real_O).to(tl.float32)[:, None]
    out_T = (part * num_tokens + token_T).to(tl.int64) * out_stride
    mask_OT = (output_O < num_outputs)[:, None] & (token_T < num_tokens)[None, :]
    tl.store(out + out_T[None, :] + output_O[:, None], acc_OT.to(out.dtype.element_ty), mask=mask_OT)


@triton.jit(
    do_not_specialize=["num_tokens", "num_outputs", "num_parts", "out_stride"],
    do_not_specialize_on_alignment=["out", "bias"],
)
def add_parts(
    sums, bias, out, num_tokens, num_outputs, num_parts, out_stride, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Adds up the parts of a token's outputs, in their order."""
    outputs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(1)
    mask = outputs < num_outputs
    acc = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias + outputs, mask=mask, other=0.0).to(tl.float32)
    for part in range(num_parts):
        acc += tl.load(sums + (part * num_tokens + token).to(tl.int64) * num_outputs + outputs, mask=mask, other=0.0)
    tl.store(out + token.to(tl.int64) * out_stride + outputs, acc.to(out.dtype.element_ty), mask=mask)
