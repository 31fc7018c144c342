"""Attention to latents in Triton: a program computes some heads of some tokens of a tile, or the merge of one of them.

A block of latents is read once, as keys and as values. With fixed launches a token's sums are those of its splits,
added in their order, and products are not fused with sums: see `paged_prefill.py`.

Shape legend: H heads, T tokens, C values of a latent that are values, too, X rotated ones, R rows, P pages a row; in a
program N keys, M rows of products: the heads of the tile's tokens, token by token.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.latent_queries import LatentQueries
from kernels.arguments.paged_kv import PagedKV
from kernels.gpu.key_blocks import LOG2_E, LOWEST, PRECISION, fold, load_scales, scales_of, widen_query
from kernels.gpu.latent_launch import LatentShape, find_latent_launch, latent_tiles_of
from kernels.gpu.launch_table import find_launch
from kernels.gpu.paged_prefill import add_split
from kernels.gpu.split_decode import merge_parts
from kernels.plans.decode_work import launch_shape_of
from kernels.plans.latent_tiles import LatentTiles
from kernels.plans.prefill_tiles import TILE_WORDS

_TILE = tl.constexpr(TILE_WORDS)


def has_latent_kernel(cache: PagedKV, dtype: torch.dtype) -> bool:
    """True if the cache has elements of this dtype or codes of fp8, which are those of a GPU."""
    return cache.keys.dtype == (dtype if cache.key_scales is None else torch.float8_e4m3fn)


def rotated_of(cache: PagedKV, num_rotated: int) -> tuple[Tensor, int, int]:
    """Returns the tensor with the rotated values, the elements of a latent in it, and the place of the first one."""
    cached = cache.keys if cache.key_scales is None else cache.keys.view(torch.bfloat16)
    size = cached.shape[2]
    return cached, size, size - num_rotated


def plan_here(tiles: LatentTiles, num_new_R: Tensor, num_before_R: Tensor) -> Tensor:
    """Returns a list that is planned now, which waits for the device."""
    num_new, num_before = num_new_R.cpu().numpy(), num_before_R.cpu().numpy()
    lines = torch.empty(tiles.max_lines(int(num_new.sum()), len(num_new)), TILE_WORDS, dtype=torch.int32)
    tiles.plan(num_new, num_before, lines.numpy().view(np.int32))
    return lines.to(num_new_R.device)


def shape_of(queries: LatentQueries, cache: PagedKV) -> LatentShape:
    num_heads, _, rank = queries.plain.shape
    size = launch_shape_of(num_heads, rank, queries.plain.dtype, cache.keys.dtype)[2]
    return num_heads, rank, queries.rotated.shape[2], size


def attend_to_latents(
    queries: LatentQueries,
    cache: PagedKV,
    page_tables_RP: Tensor,
    lines_N8: Tensor,
    scale: float,
    out_HTC: Tensor,
    is_decode: bool,
) -> None:
    """Computes a list of decode rows, or of other tokens."""
    (plain_HTC, rotated_HTX, _), shape = queries, shape_of(queries, cache)
    (num_heads, rank, num_rotated, _), tiles = shape, latent_tiles_of(is_decode, shape)
    for each in (plain_HTC, rotated_HTX, out_HTC):
        assert each.stride()[1:] == (each.shape[2], 1)
    assert lines_N8.is_contiguous()
    assert lines_N8.shape[1] == TILE_WORDS
    cached, size, rotated_at = rotated_of(cache, num_rotated)
    (pieces_N8, cut_N8), tile_rows = tiles.split_list(lines_N8), tiles.tile_tokens * num_heads
    num_part_rows = tiles.max_parts * tile_rows
    partials = torch.empty(num_part_rows, rank, dtype=torch.float32, device=out_HTC.device)
    extremes = torch.empty(2, num_part_rows, dtype=torch.float32, device=out_HTC.device)
    attend[(len(pieces_N8) * tiles.num_blocks,)](
        *(plain_HTC, rotated_HTX, cache.keys, cached, scales_of(cache)[0], page_tables_RP, pieces_N8),
        *(partials, *extremes, out_HTC, scale * LOG2_E),
        *(plain_HTC.stride(0) // rank, rotated_HTX.stride(0) // num_rotated, out_HTC.stride(0) // rank),
        *(page_tables_RP.stride(0), tiles.num_blocks, tile_rows),
        NUM_HEADS=num_heads,
        RANK=rank,
        ROTATED=num_rotated,
        SIZE=cache.head_dim,
        ROTATED_SIZE=size,
        ROTATED_AT=rotated_at,
        PAGE_SIZE=cache.page_size,
        HAS_SCALES=cache.key_scales is not None,
        SPLIT=tiles.split_keys,
        **find_latent_launch(is_decode, shape),
    )
    merge[(len(cut_N8) * tile_rows,)](
        *(cut_N8, partials, *extremes, out_HTC, out_HTC.stride(0) // rank, tile_rows),
        NUM_HEADS=num_heads,
        RANK=rank,
        **find_launch("latent_merge", rank),
    )


@triton.jit(
    do_not_specialize=["plain_tokens", "rotated_tokens", "out_tokens", "table_stride", "num_blocks", "tile_rows"]
)
def attend(
    plain,
    rotated,
    latents,
    rotated_latents,
    scales,
    page_tables,
    pieces,
    partials,
    maxima,
    sums,
    out,
    scale_log2,
    plain_tokens,
    rotated_tokens,
    out_tokens,
    table_stride,
    num_blocks,
    tile_rows,
    NUM_HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROTATED: tl.constexpr,
    SIZE: tl.constexpr,
    ROTATED_SIZE: tl.constexpr,
    ROTATED_AT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    words = pieces + tl.program_id(0) // num_blocks * _TILE
    row = tl.load(words)
    num_tokens = tl.load(words + 3)
    place_M = tl.program_id(0) % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    if (row < 0) | (tl.program_id(0) % num_blocks * BLOCK_M >= num_tokens * NUM_HEADS):
        return
    first_key, end_key = tl.load(words + 4), tl.load(words + 5)
    query_M = place_M // NUM_HEADS
    last_M = tl.load(words + 1) + query_M
    head_M = place_M % NUM_HEADS
    token_M = tl.load(words + 2) + query_M
    is_used_M = query_M < num_tokens
    dim_C, dim_X = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_X)
    is_used_MC = is_used_M[:, None] & (dim_C < RANK)[None, :]
    plain_M = (head_M.to(tl.int64) * plain_tokens + token_M) * RANK
    plain_MC = tl.load(plain + plain_M[:, None] + dim_C[None, :], mask=is_used_MC, other=0.0)
    rotated_M = (head_M.to(tl.int64) * rotated_tokens + token_M) * ROTATED
    rotated_MX = tl.load(
        rotated + rotated_M[:, None] + dim_X[None, :], mask=is_used_M[:, None] & (dim_X < ROTATED)[None, :], other=0.0
    )
    page_table = page_tables + row.to(tl.int64) * table_stride
    plain_MC, scale = widen_query(plain_MC, scale_log2, HAS_SCALES)
    total_max_M, total_sum_M = tl.full([BLOCK_M], LOWEST, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    total_MC = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    max_M, sum_M, acc_MC = total_max_M, total_sum_M, total_MC
    # A piece of fixed launches is a number of splits, any other is one stretch of keys.
    for split in range(tl.cdiv(end_key - first_key, SPLIT) if SPLIT else 1):
        begin = first_key + split * SPLIT
        end = tl.minimum(begin + SPLIT, end_key) if SPLIT else end_key
        # The maximum stays `LOWEST` for a token that sees none of these keys.
        max_M, sum_M = tl.full([BLOCK_M], LOWEST, tl.float32), tl.zeros([BLOCK_M], tl.float32)
        acc_MC = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
        for start in range(begin, end, BLOCK_N):
            key_N = start + tl.arange(0, BLOCK_N)
            is_key_N = key_N < end
            page_N = tl.load(page_table + key_N // PAGE_SIZE, mask=is_key_N, other=0).to(tl.int64)
            slot_N = page_N * PAGE_SIZE + key_N % PAGE_SIZE
            latent_NC = tl.load(
                latents + (slot_N * SIZE)[:, None] + dim_C[None, :],
                mask=is_key_N[:, None] & (dim_C < RANK)[None, :],
                other=0.0,
            )
            rotated_NX = tl.load(
                rotated_latents + (slot_N * ROTATED_SIZE + ROTATED_AT)[:, None] + dim_X[None, :],
                mask=is_key_N[:, None] & (dim_X < ROTATED)[None, :],
                other=0.0,
            )
            scale_N = 1.0
            if HAS_SCALES:
                latent_NC, rotated_NX = latent_NC.to(plain_MC.dtype), rotated_NX.to(rotated_MX.dtype)
                scale_N = tl.where(is_key_N, load_scales(scales, slot_N), 1.0)
                score_MN = tl.dot(plain_MC, tl.trans(latent_NC), input_precision=PRECISION) * scale * scale_N[None, :]
                score_MN += tl.dot(rotated_MX, tl.trans(rotated_NX), input_precision=PRECISION) * scale_log2
            else:
                score_MN = tl.dot(plain_MC, tl.trans(latent_NC), input_precision=PRECISION)
                score_MN = tl.dot(rotated_MX, tl.trans(rotated_NX), score_MN, input_precision=PRECISION) * scale_log2
            is_seen_MN = is_key_N[None, :] & (key_N[None, :] <= last_M[:, None])
            score_MN = tl.where(is_seen_MN, score_MN, float("-inf"))
            max_M, sum_M, acc_MC = fold(score_MN, latent_NC, scale_N, max_M, sum_M, acc_MC, HAS_SCALES)
        if SPLIT:
            total_max_M, total_sum_M, total_MC = add_split(max_M, sum_M, acc_MC, total_max_M, total_sum_M, total_MC)
    if SPLIT:
        max_M, sum_M, acc_MC = total_max_M, total_sum_M, total_MC
    part = tl.load(words + 6)
    if part >= 0:
        part_M = part * tile_rows + place_M
        tl.store(maxima + part_M, max_M, mask=is_used_M)
        tl.store(sums + part_M, sum_M, mask=is_used_M)
        tl.store(partials + (part_M.to(tl.int64) * RANK)[:, None] + dim_C[None, :], acc_MC, mask=is_used_MC)
    else:
        out_M = (head_M.to(tl.int64) * out_tokens + token_M) * RANK
        out_MC = (acc_MC / sum_M[:, None]).to(out.dtype.element_ty)
        tl.store(out + out_M[:, None] + dim_C[None, :], out_MC, mask=is_used_MC)


@triton.jit(do_not_specialize=["out_tokens", "tile_rows"])
def merge(
    cut,
    partials,
    maxima,
    sums,
    out,
    out_tokens,
    tile_rows,
    NUM_HEADS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Adds the parts of one head of one token in order, if it has some."""
    words = cut + tl.program_id(0) // tile_rows * _TILE
    place = tl.program_id(0) % tile_rows
    first_part, end_part = tl.load(words + 2), tl.load(words + 3)
    if (first_part == end_part) | (place >= tl.load(words + 1) * NUM_HEADS):
        return
    dim_C = tl.arange(0, BLOCK_C)
    out_MC = merge_parts(
        *(first_part, end_part, partials, maxima, sums), tile_rows.to(tl.int64), place, SIZE=RANK, BLOCK_D=BLOCK_C
    )
    token = tl.load(words) + place // NUM_HEADS
    out_C = out + ((place % NUM_HEADS).to(tl.int64) * out_tokens + token) * RANK + dim_C
    tl.store(out_C[None, :], out_MC.to(out.dtype.element_ty), mask=(dim_C < RANK)[None, :])
