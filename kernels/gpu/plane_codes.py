"""Codes and scales of weights in planes, as the Triton kernels read them.

Shape legend: O outputs of a program, W words of codes: the inputs of a group.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.code_planes import FIELDS, CodePlanes


def planes_of(planes: CodePlanes) -> tuple[Tensor, ...]:
    """Returns the planes in the order in which the kernels take them; no kernel reads those that the form lacks."""
    parts = planes.low, planes.high, planes.scales, planes.scale_factors, planes.minimums, planes.minimum_factors
    return tuple(planes.low if part is None else part for part in (*parts, planes.table))


def constants_of(planes: CodePlanes) -> dict[str, Any]:
    return {
        "LOW_BITS": planes.low_bits,
        "HIGH_BITS": planes.high_bits,
        "OFFSET": planes.offset,
        "HAS_TABLE": planes.table is not None,
        "GROUP": planes.group,
        "GROUPS_A_SCALE": planes.groups_a_scale,
        "HAS_SCALE_FACTORS": planes.scale_factors is not None,
        "HAS_MINIMUMS": planes.minimums is not None,
        "HAS_MINIMUM_FACTORS": planes.minimum_factors is not None,
    }


@triton.jit
def load_words(low, high, row_O, num_words, span, LOW_BITS: tl.constexpr, HIGH_BITS: tl.constexpr, GROUP: tl.constexpr):
    """Returns the words of a span [O, W], and the words of their high bits; neither is read if codes are whole bytes.

    `row_O` is int64: a weight may have more than 2^31 codes.
    """
    words_OW = row_O[:, None] * num_words + (span * GROUP + tl.arange(0, GROUP))[None, :]
    low_OW, high_OW = words_OW, words_OW
    if LOW_BITS < 8:
        low_OW = tl.load(low + words_OW)
    if HIGH_BITS:
        high_OW = tl.load(high + words_OW)
    return low_OW, high_OW


@triton.jit
def decode(
    low_OW,
    high_OW,
    low,
    table,
    row_O,
    num_words,
    span,
    FIELD: tl.constexpr,
    LOW_BITS: tl.constexpr,
    HIGH_BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Returns the codes of one field of a span's words, less their offset, in WIDE, which holds them exactly."""
    if LOW_BITS == 8:
        inputs_W = span * (FIELDS_A_WORD * GROUP) + FIELD * GROUP + tl.arange(0, GROUP)
        value_OW = tl.load(low + row_O[:, None] * (num_words * FIELDS_A_WORD) + inputs_W[None, :]).to(WIDE)
    else:
        code_OW = (low_OW.to(tl.int32) >> (FIELD * LOW_BITS)) & ((1 << LOW_BITS) - 1)
        if HIGH_BITS:
            code_OW |= ((high_OW.to(tl.int32) >> (FIELD * HIGH_BITS)) & ((1 << HIGH_BITS) - 1)) << LOW_BITS
        if HAS_TABLE:
            value_OW = tl.load(table + code_OW).to(WIDE)
        elif tl.bfloat16 == WIDE:
            # The bits of 128 are 0x4300: the code becomes the last digits of a number, with no conversion.
            value_OW = (code_OW | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - (128 + OFFSET)
        else:
            value_OW = (code_OW - OFFSET).to(WIDE)
    return value_OW


@triton.jit
def load_scale(
    scales,
    factors,
    span,
    output_O,
    num_outputs,
    FIELD: tl.constexpr,
    GROUPS_A_SCALE: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):
    """Returns the scale, or the minimum, of a field's group for each output, float32 [O]."""
    if GROUPS_A_SCALE < FIELDS_A_WORD:
        index = (span * FIELDS_A_WORD + FIELD) // GROUPS_A_SCALE
    else:
        index = span // (GROUPS_A_SCALE // FIELDS_A_WORD)  # the fields of a span share one load
    scale_O = tl.load(scales + index * num_outputs + output_O).to(tl.float32)
    if HAS_FACTORS:
        group = span * FIELDS_A_WORD + FIELD
        scale_O *= tl.load(factors + group * num_outputs + output_O).to(tl.float32)
    return scale_O


FIELDS_A_WORD = tl.constexpr(FIELDS)
