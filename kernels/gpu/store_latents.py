"""The Triton kernel of `store_latents`: a token's latent and its queries, each read once.

Shape legend: T tokens, H query heads, N values of a query that are not rotated, X rotated ones, C values of a latent
that are not rotated; in a program Q heads, Y pairs of rotated values.

A program takes a token's latent, or some of its heads.
"""

import triton
import triton.language as tl

from kernels.arguments.latent_queries import LatentNorm, LatentQueries, LatentTokens
from kernels.arguments.paged_kv import MAX_CODES, PagedKV
from kernels.gpu.key_blocks import scales_of
from kernels.gpu.latent_tiles import has_latent_kernel, rotated_of
from kernels.gpu.launch_table import find_launch


def store_latents(tokens: LatentTokens, cache: PagedKV, norm: LatentNorm, queries: LatentQueries) -> object:
    query_THD, latent_TL, positions_T, slots_T = tokens
    if not has_latent_kernel(cache, query_THD.dtype):
        return NotImplemented
    (num_tokens, num_heads, _), num_plain, num_rotated = query_THD.shape, *(part.shape[2] for part in queries[:2])
    cos_MY, sin_MY, query_row = norm.tables
    operands = query_THD, latent_TL, positions_T, slots_T, norm.weight, cos_MY, sin_MY, *queries
    assert all(operand.is_contiguous() for operand in operands)
    cached, size, rotated_at = rotated_of(cache, num_rotated)
    rank = len(norm.weight)
    launch = find_launch("store_latents", num_heads, num_plain, rank, num_rotated)
    store_latents_kernel[(num_tokens, 1 + triton.cdiv(num_heads, launch["HEADS"]))](
        *(query_THD, latent_TL, positions_T, slots_T, norm.weight, cos_MY, sin_MY),
        *(cos_MY if norm.growth is None else norm.growth, cache.keys, cached, scales_of(cache)[0]),
        *(*queries, norm.eps, num_tokens),
        NUM_HEADS=num_heads,
        PLAIN=num_plain,
        RANK=rank,
        HALF=num_rotated // 2,
        SIZE=cache.head_dim,
        ROTATED_SIZE=size,
        ROTATED_AT=rotated_at,
        QUERY_ROW=query_row,
        HAS_GROWTH=norm.growth is not None,
        MAX_CODE=0.0 if cache.key_scales is None else MAX_CODES[cache.keys.dtype],
        **launch,
    )
    return None


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["ends", "rotated_out"])
def store_latents_kernel(
    query,
    latent,
    positions,
    slots,
    weight,
    cosines,
    sines,
    growth,
    cached,
    cached_rotated,
    scales,
    plain_out,
    rotated_out,
    ends,
    eps,
    num_tokens,
    NUM_HEADS: tl.constexpr,
    PLAIN: tl.constexpr,
    RANK: tl.constexpr,
    HALF: tl.constexpr,
    SIZE: tl.constexpr,
    ROTATED_SIZE: tl.constexpr,
    ROTATED_AT: tl.constexpr,
    QUERY_ROW: tl.constexpr,
    HAS_GROWTH: tl.constexpr,
    MAX_CODE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_Y: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    pair_Y = tl.arange(0, BLOCK_Y)
    is_pair_Y = pair_Y < HALF
    if tl.program_id(1) == 0:
        slot = tl.load(slots + token)
        if slot >= 0:
            dim_C = tl.arange(0, BLOCK_C)
            is_dim_C = dim_C < RANK
            source = latent + token * (RANK + 2 * HALF)
            wide_C = tl.load(source + dim_C, mask=is_dim_C, other=0.0).to(tl.float32)
            normed_C = wide_C * tl.rsqrt(tl.sum(wide_C * wide_C, 0) / RANK + eps)
            weight_C = tl.load(weight + dim_C, mask=is_dim_C, other=0.0).to(tl.float32)
            # Rounded before and after the weight is applied, as `rms_norm` does.
            normed_C = (normed_C.to(latent.dtype.element_ty).to(tl.float32) * weight_C).to(latent.dtype.element_ty)
            if MAX_CODE > 0:
                normed_C = normed_C.to(tl.float32)
                # As bits NaN is more than any number, where a maximum of floats may lose it.
                largest = tl.max(tl.abs(normed_C).to(tl.int32, bitcast=True), 0).to(tl.float32, bitcast=True)
                scale = (largest / MAX_CODE).to(tl.bfloat16)
                unit = scale.to(tl.float32)
                normed_C = tl.div_rn(normed_C, tl.zeros_like(normed_C) + tl.where(unit > 0, unit, 1.0))
                tl.store(scales + slot, scale)
            tl.store(cached + slot * SIZE + dim_C, normed_C.to(cached.dtype.element_ty), mask=is_dim_C)
            first_Y = tl.load(source + RANK + pair_Y, mask=is_pair_Y, other=0.0)
            second_Y = tl.load(source + RANK + HALF + pair_Y, mask=is_pair_Y, other=0.0)
            cos_Y = tl.load(cosines + position * HALF + pair_Y, mask=is_pair_Y, other=1.0)
            sin_Y = tl.load(sines + position * HALF + pair_Y, mask=is_pair_Y, other=0.0)
            first_Y, second_Y = _rotate(first_Y, second_Y, cos_Y, sin_Y)
            target = cached_rotated + slot * ROTATED_SIZE + ROTATED_AT + pair_Y
            tl.store(target, first_Y.to(cached_rotated.dtype.element_ty), mask=is_pair_Y)
            tl.store(target + HALF, second_Y.to(cached_rotated.dtype.element_ty), mask=is_pair_Y)
    else:
        head_Q = (tl.program_id(1) - 1) * HEADS + tl.arange(0, HEADS)
        is_head_Q = head_Q < NUM_HEADS
        dim_N = tl.arange(0, BLOCK_N)
        is_used_QN = is_head_Q[:, None] & (dim_N < PLAIN)[None, :]
        is_used_QY = is_head_Q[:, None] & is_pair_Y[None, :]
        source_Q = query + (token * NUM_HEADS + head_Q) * (PLAIN + 2 * HALF)
        target_Q = head_Q.to(tl.int64) * num_tokens + token
        plain_QN = tl.load(source_Q[:, None] + dim_N[None, :], mask=is_used_QN, other=0.0)
        if HAS_GROWTH:
            plain_QN = (plain_QN.to(tl.float32) * tl.load(growth + position)).to(plain_QN.dtype)
        tl.store(plain_out + (target_Q * PLAIN)[:, None] + dim_N[None, :], plain_QN, mask=is_used_QN)
        first_QY = tl.load(source_Q[:, None] + PLAIN + pair_Y[None, :], mask=is_used_QY, other=0.0)
        second_QY = tl.load(source_Q[:, None] + PLAIN + HALF + pair_Y[None, :], mask=is_used_QY, other=0.0)
        angle_Y = (position + QUERY_ROW) * HALF + pair_Y
        cos_Y = tl.load(cosines + angle_Y, mask=is_pair_Y, other=1.0)[None, :]
        sin_Y = tl.load(sines + angle_Y, mask=is_pair_Y, other=0.0)[None, :]
        first_QY, second_QY = _rotate(first_QY, second_QY, cos_Y, sin_Y)
        target_QY = rotated_out + (target_Q * (2 * HALF))[:, None] + pair_Y[None, :]
        tl.store(target_QY, first_QY, mask=is_used_QY)
        tl.store(target_QY + HALF, second_QY, mask=is_used_QY)
        if token == 0:
            tl.store(ends + head_Q, (head_Q + 1) * num_tokens, mask=is_head_Q)


@triton.jit
def _rotate(first, second, cos, sin):
    """Returns both halves in their dtype, computed in float32."""
    wide_1, wide_2 = first.to(tl.float32), second.to(tl.float32)
    return (wide_1 * cos - wide_2 * sin).to(first.dtype), (wide_2 * cos + wide_1 * sin).to(second.dtype)
