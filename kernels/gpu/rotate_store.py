"""The Triton kernel of `rotate_store`: norm, rotation and cache write of a token's heads, read once.

Shape legend: T tokens, H query heads, G key/value heads, A = H + 2 G, D head dimension, X pairs of rotated
values, S slots.

A program takes some heads of one kind (query, key or value) of one token, as two parts of D: its first X values, which
the rotation pairs with the first of the others.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.paged_kv import MAX_CODES, InPlace, PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.gpu.key_blocks import scales_of
from kernels.gpu.launch_table import find_launch


def rotate_store(
    heads_TAD: Tensor,
    cache: PagedKV | InPlace | None,
    tables: RopeTables | None,
    positions_T: Tensor,
    slots_T: Tensor,
    norms: HeadNorms | None,
) -> Tensor:
    num_tokens, num_all_heads, head_dim = heads_TAD.shape
    num_kv_heads = 0 if cache is None else cache.num_heads
    num_heads = num_all_heads - 2 * num_kv_heads
    stored = cache if isinstance(cache, PagedKV) else None
    keys, values = (heads_TAD, heads_TAD) if stored is None else (stored.keys, stored.values)
    scales = (heads_TAD, heads_TAD) if stored is None else scales_of(stored)
    assert heads_TAD.is_contiguous()
    assert positions_T.is_contiguous()
    assert slots_T.is_contiguous()
    cos_MX, sin_MX, query_row = tables or (keys, keys, 0)
    half = cos_MX.shape[1] if tables else (head_dim + 1) // 2
    weights = [heads_TAD if weight is None else weight for weight in (norms.weights if norms else (None,) * 3)]
    assert all(operand.is_contiguous() for operand in (cos_MX, sin_MX, *weights))
    launch = find_launch("rotate_store", num_heads, num_kv_heads or num_heads, 2 * max(half, head_dim - half))
    num_programs = triton.cdiv(num_heads, launch["HEADS"]) + 2 * triton.cdiv(num_kv_heads, launch["HEADS"])
    rotate_store_kernel[(num_tokens, num_programs)](
        heads_TAD,
        keys,
        values,
        *scales,
        cos_MX,
        sin_MX,
        positions_T,
        slots_T,
        *weights,
        norms.eps if norms else 0.0,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        X=half,
        QUERY_ROW=query_row,
        HAS_ROPE=tables is not None,
        HAS_NORM=norms is not None,
        HAS_VALUE_NORM=norms is not None and norms.value_weight is not None,
        IN_PLACE=stored is None,
        MAX_CODE=MAX_CODES[keys.dtype] if stored is not None and stored.key_scales is not None else 0.0,
        **launch,
    )
    return heads_TAD[:, :num_heads]


@triton.jit
def rotate_store_kernel(
    heads_ptr,
    keys,
    values,
    key_scales,
    value_scales,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    query_weight_ptr,
    key_weight_ptr,
    value_weight_ptr,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    X: tl.constexpr,
    QUERY_ROW: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_VALUE_NORM: tl.constexpr,
    IN_PLACE: tl.constexpr,
    MAX_CODE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    NUM_QUERY_PROGRAMS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    NUM_KEY_PROGRAMS: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    token = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    is_query = program < NUM_QUERY_PROGRAMS
    has_angle = program < NUM_QUERY_PROGRAMS + NUM_KEY_PROGRAMS
    slot = token
    if not IN_PLACE:
        slot = tl.load(slots_ptr + token)
    if is_query | (slot >= 0):
        num_heads = tl.where(is_query, NUM_HEADS, NUM_KV_HEADS)
        first_head = tl.where(is_query, 0, tl.where(has_angle, NUM_HEADS, NUM_HEADS + NUM_KV_HEADS))
        program_of_kind = tl.where(is_query, program, (program - NUM_QUERY_PROGRAMS) % max(NUM_KEY_PROGRAMS, 1))
        head = program_of_kind * HEADS + tl.arange(0, HEADS)
        column = tl.arange(0, HALF)
        mask_1 = (head < num_heads)[:, None] & (column < X)[None, :]
        mask_2 = (head < num_heads)[:, None] & (column + X < HEAD_DIM)[None, :]
        offsets = head[:, None] * HEAD_DIM + column[None, :]
        source_ptr = heads_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + first_head) * HEAD_DIM
        half_1 = tl.load(source_ptr + offsets, mask=mask_1, other=0.0)
        half_2 = tl.load(source_ptr + offsets + X, mask=mask_2, other=0.0)
        if has_angle:
            if HAS_NORM:
                weight_ptr = key_weight_ptr
                if is_query:
                    weight_ptr = query_weight_ptr
                half_1, half_2 = norm_halves(half_1, half_2, weight_ptr, eps, HEAD_DIM, X, HALF)
            if HAS_ROPE:
                row = tl.load(positions_ptr + token).to(tl.int64) + tl.where(is_query, QUERY_ROW, 0)
                angle = row * X + column
                cos = tl.load(cos_ptr + angle, mask=column < X, other=1.0)[None, :]
                sin = tl.load(sin_ptr + angle, mask=column < X, other=0.0)[None, :]
                half_1, half_2 = rotate(half_1, half_2, cos, sin)
        elif HAS_VALUE_NORM:
            half_1, half_2 = norm_halves(half_1, half_2, value_weight_ptr, eps, HEAD_DIM, X, HALF)
        if is_query | IN_PLACE:
            if HAS_NORM or HAS_ROPE:
                tl.store(source_ptr + offsets, half_1, mask=mask_1)
                tl.store(source_ptr + offsets + X, half_2, mask=mask_2)
        else:
            target_ptr = values
            if has_angle:
                target_ptr = keys
            stored_1, stored_2 = half_1, half_2
            if MAX_CODE > 0:
                scales_ptr = value_scales
                if has_angle:
                    scales_ptr = key_scales
                stored_1, stored_2, scale = quantize_halves(half_1, half_2, MAX_CODE)
                tl.store(scales_ptr + slot * NUM_KV_HEADS + head, scale, mask=head < num_heads)
            target_ptr += slot * (NUM_KV_HEADS * HEAD_DIM)
            tl.store(target_ptr + offsets, stored_1.to(keys.dtype.element_ty), mask=mask_1)
            tl.store(target_ptr + offsets + X, stored_2.to(keys.dtype.element_ty), mask=mask_2)


@triton.jit
def rotate(half_1, half_2, cos, sin):
    wide_1, wide_2 = half_1.to(tl.float32), half_2.to(tl.float32)
    return (wide_1 * cos - wide_2 * sin).to(half_1.dtype), (wide_2 * cos + wide_1 * sin).to(half_2.dtype)


@triton.jit
def quantize_halves(half_1, half_2, MAX_CODE: tl.constexpr):
    """Returns what is to become codes, and the heads' scales: `kernels/operations/quantized_kv.py`."""
    wide_1, wide_2 = half_1.to(tl.float32), half_2.to(tl.float32)
    # As bits NaN is more than any number, where a maximum of floats may lose it.
    largest_1 = tl.max(tl.abs(wide_1).to(tl.int32, bitcast=True), 1)
    largest_2 = tl.max(tl.abs(wide_2).to(tl.int32, bitcast=True), 1)
    scale = (tl.maximum(largest_1, largest_2).to(tl.float32, bitcast=True) / MAX_CODE).to(tl.bfloat16)
    unit = scale.to(tl.float32)
    divisor = tl.where(unit > 0, unit, 1.0)[:, None]
    return tl.div_rn(wide_1, divisor), tl.div_rn(wide_2, divisor), scale


@triton.jit
def norm_halves(half_1, half_2, weight_ptr, eps, HEAD_DIM: tl.constexpr, X: tl.constexpr, HALF: tl.constexpr):
    column = tl.arange(0, HALF)
    wide_1, wide_2 = half_1.to(tl.float32), half_2.to(tl.float32)
    scale = tl.rsqrt((tl.sum(wide_1 * wide_1, 1) + tl.sum(wide_2 * wide_2, 1)) / HEAD_DIM + eps)[:, None]
    weight_1 = tl.load(weight_ptr + column, mask=column < X, other=0.0).to(tl.float32)[None, :]
    weight_2 = tl.load(weight_ptr + column + X, mask=column + X < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
    # Rounded before it is weighted, as `rms_norm` does.
    normed_1 = (wide_1 * scale).to(half_1.dtype).to(tl.float32) * weight_1
    normed_2 = (wide_2 * scale).to(half_2.dtype).to(tl.float32) * weight_2
    return normed_1.to(half_1.dtype), normed_2.to(half_2.dtype)
