"""Codes and scales of weights in planes, as the Triton kernels read them.

Shape legend: O outputs of a program, W words of codes: the inputs of a group.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.code_planes import FIELDS, CodePlanes

NUM_FIELDS = tl.constexpr(FIELDS)


def planes_of(planes: CodePlanes) -> tuple[Tensor, ...]:
    """Returns the planes in the order in which the kernels take them; no kernel reads those that the form lacks."""
    parts = planes.low, planes.high, planes.scales, planes.scale_factors, planes.minimums, planes.minimum_factors
    return tuple(planes.low if part is None else part for part in (*parts, planes.table))


@triton.jit
def load_words(low, high, row_O, num_words, span, FORM: tl.constexpr):
    """Returns the words of a span [O, W], and the words of their high bits; those that the form lacks mean nothing.

    `row_O` is int64: a weight may have more than 2^31 codes.
    """
    words_OW = row_O[:, None] * num_words + (span * FORM.group + tl.arange(0, FORM.group))[None, :]
    low_OW, high_OW = words_OW, words_OW
    if FORM.low_bits < 8:
        low_OW = tl.load(low + words_OW)
    if FORM.high_bits:
        high_OW = tl.load(high + words_OW)
    return low_OW, high_OW


@triton.jit
def decode(
    low_OW, high_OW, low, table, row_O, num_words, span, FIELD: tl.constexpr, FORM: tl.constexpr, WIDE: tl.constexpr
):
    """Returns the codes of one field of a span's words, less their offset, in WIDE, which holds them exactly."""
    if FORM.low_bits == 8:
        inputs_W = (span * NUM_FIELDS + FIELD) * FORM.group + tl.arange(0, FORM.group)
        value_OW = tl.load(low + row_O[:, None] * (num_words * NUM_FIELDS) + inputs_W[None, :]).to(WIDE)
    else:
        code_OW = (low_OW.to(tl.int32) >> (FIELD * FORM.low_bits)) & ((1 << FORM.low_bits) - 1)
        if FORM.high_bits:
            high_bits_OW = (high_OW.to(tl.int32) >> (FIELD * FORM.high_bits)) & ((1 << FORM.high_bits) - 1)
            code_OW |= high_bits_OW << FORM.low_bits
        if FORM.is_fp4:
            value_OW = decode_fp4(code_OW, WIDE)
        elif FORM.has_table:
            value_OW = tl.load(table + code_OW).to(WIDE)
        elif tl.bfloat16 == WIDE:
            # The bits of 128 are 0x4300: the code becomes the last digits of a number, with no conversion.
            value_OW = (code_OW | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - (128 + FORM.offset)
        else:
            value_OW = (code_OW - FORM.offset).to(WIDE)
    return value_OW


@triton.jit
def decode_fp4(code_OW, WIDE: tl.constexpr):
    """Returns twice the numbers, exactly: their bits in WIDE mean them times a power of 2, also if subnormal."""
    if tl.float32 == WIDE:
        bits_OW = ((code_OW & 7) << 22) | ((code_OW & 8) << 28)
        value_OW = bits_OW.to(tl.float32, bitcast=True) * 2.0**127
    elif tl.bfloat16 == WIDE:
        bits_OW = ((code_OW & 7) << 6) | ((code_OW & 8) << 12)
        value_OW = bits_OW.to(tl.int16).to(tl.bfloat16, bitcast=True) * 2.0**127
    else:
        bits_OW = ((code_OW & 7) << 9) | ((code_OW & 8) << 12)
        value_OW = bits_OW.to(tl.int16).to(tl.float16, bitcast=True) * 2.0**15
    return value_OW


@triton.jit
def load_scale(
    scales, factors, span, output_O, num_outputs, FIELD: tl.constexpr, FORM: tl.constexpr, HAS_FACTORS: tl.constexpr
):
    """Returns the scale, or the minimum, of a field's group for each output, float32 [O]."""
    group = span * NUM_FIELDS + FIELD
    if FORM.groups_a_scale < NUM_FIELDS:
        index = group // FORM.groups_a_scale
    else:
        index = span // (FORM.groups_a_scale // NUM_FIELDS)  # the fields of a span share one load
    scale_O = tl.load(scales + index * num_outputs + output_O).to(tl.float32)
    if HAS_FACTORS:
        scale_O *= tl.load(factors + group * num_outputs + output_O).to(tl.float32)
    return scale_O
