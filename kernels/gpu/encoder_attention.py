"""Attention of whole rows in Triton: one program per tile of a row's tokens and key/value head, as in prefill.

Shape legend: T tokens of all rows, C rows of several tokens, H query heads, G key/value heads, D head dimension, X
distances; in a program N keys, M rows of products: the query heads of the key/value head, token by token.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.rows import WholeRows
from kernels.gpu.key_blocks import LOG2_E, LOWEST, fold, score
from kernels.gpu.launch_table import find_launch

_LOG2_E = tl.constexpr(LOG2_E)


def encoder_attention(
    query_THD: Tensor,
    key_TGD: Tensor,
    value_TGD: Tensor,
    rows: WholeRows,
    options: AttentionOptions,
    out_THD: Tensor,
) -> None:
    """The host knows no row's length: programs find their rows, and those beyond the last tile return."""
    (num_tokens, num_heads, head_dim), num_kv_heads = query_THD.shape, key_TGD.shape[1]
    (num_single, query_lens_C), bias_HX = rows, options.biases
    queries, num_rows = num_heads // num_kv_heads, len(query_lens_C)
    out_THD[:num_single] = value_TGD[:num_single].repeat_interleave(queries, 1)
    if not num_rows:
        return
    launch = find_launch("paged_prefill", queries, head_dim, query_THD.dtype.itemsize)
    tile_tokens = launch["BLOCK_M"] // queries
    first_token, first_tile = (
        functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        for counts in (query_lens_C, (query_lens_C + tile_tokens - 1) // tile_tokens)
    )
    attend_whole[(triton.cdiv(num_tokens - num_single, tile_tokens) + num_rows, num_kv_heads)](
        query_THD[num_single:],
        key_TGD[num_single:],
        value_TGD[num_single:],
        first_token,
        first_tile,
        out_THD[num_single:],
        first_token if bias_HX is None else bias_HX,  # not read without biases
        options.scale * LOG2_E,
        num_rows,
        query_THD.stride(0),
        key_TGD.stride(0),
        value_TGD.stride(0),
        QUERIES=queries,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        WINDOW=options.window or 0,
        REACH=0 if bias_HX is None else bias_HX.shape[1] // 2,
        HAS_BIASES=bias_HX is not None,
        **launch,
    )


@triton.jit(do_not_specialize=["num_rows"])
def attend_whole(
    query,
    keys,
    values,
    first_token,
    first_tile,
    out,
    biases,
    scale_log2,
    num_rows,
    query_stride,
    key_stride,
    value_stride,
    QUERIES: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    REACH: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    if tile >= tl.load(first_tile + num_rows):
        return
    row, beyond = 0, num_rows
    while beyond - row > 1:
        middle = (row + beyond) // 2
        is_before = tl.load(first_tile + middle) <= tile
        row, beyond = tl.where(is_before, middle, row), tl.where(is_before, beyond, middle)
    TILE: tl.constexpr = BLOCK_M // QUERIES
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * QUERIES
    first = tl.load(first_token + row).to(tl.int64)
    num_keys = (tl.load(first_token + row + 1) - first).to(tl.int32)
    start = (tile - tl.load(first_tile + row)) * TILE

    position_M = start + tl.arange(0, BLOCK_M) // QUERIES
    head_M = kv_head * QUERIES + tl.arange(0, BLOCK_M) % QUERIES
    dim_D = tl.arange(0, BLOCK_D)
    is_used_M = (tl.arange(0, BLOCK_M) < TILE * QUERIES) & (position_M < num_keys)
    is_used_MD, is_dim_D = is_used_M[:, None] & (dim_D < HEAD_DIM)[None, :], dim_D < HEAD_DIM
    query_MD = tl.load(
        query + ((first + position_M) * query_stride + head_M * HEAD_DIM)[:, None] + dim_D[None, :],
        mask=is_used_MD,
        other=0.0,
    )
    keys += first * key_stride + kv_head * HEAD_DIM
    values += first * value_stride + kv_head * HEAD_DIM
    max_M, sum_M = tl.full([BLOCK_M], LOWEST, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    begin, end = 0, num_keys
    if WINDOW:
        begin = tl.maximum(start - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        end = tl.minimum(num_keys, start + TILE + WINDOW - 1)
    for key in range(begin, end, BLOCK_N):
        key_N = key + tl.arange(0, BLOCK_N)
        is_key_N = key_N < end
        key_mask, value_mask = is_key_N[None, :] & is_dim_D[:, None], is_key_N[:, None] & is_dim_D[None, :]
        key_DN = tl.load(keys + (key_N * key_stride)[None, :] + dim_D[:, None], mask=key_mask, other=0.0)
        value_ND = tl.load(values + (key_N * value_stride)[:, None] + dim_D[None, :], mask=value_mask, other=0.0)
        score_MN = score(query_MD, key_DN, 1.0, scale_log2, False)
        distance_MN = key_N[None, :] - position_M[:, None]
        if HAS_BIASES:
            place_MN = tl.minimum(tl.maximum(distance_MN, -REACH), REACH) + REACH + head_M[:, None] * (2 * REACH + 1)
            score_MN += tl.load(biases + place_MN) * _LOG2_E
        is_seen_MN = is_key_N[None, :]
        if WINDOW:
            is_seen_MN &= (distance_MN > -WINDOW) & (distance_MN < WINDOW)
        score_MN = tl.where(is_seen_MN, score_MN, float("-inf"))
        max_M, sum_M, acc_MD = fold(score_MN, value_ND, 1.0, max_M, sum_M, acc_MD, False)
    out_M = ((first + position_M) * NUM_HEADS + head_M) * HEAD_DIM
    out_MD = (acc_MD / sum_M[:, None]).to(out.dtype.element_ty)
    tl.store(out + out_M[:, None] + dim_D[None, :], out_MD, mask=is_used_MD)
