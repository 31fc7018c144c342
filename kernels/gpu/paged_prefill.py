"""Prefill attention in Triton: one program per tile of a row's new tokens and key/value head.

Shape legend: T tokens of all rows, H query heads, D head dimension; in a program N keys, M rows of products: the query
heads of the key/value head, token by token.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.gpu.key_blocks import LOG2_E, fold, load_block, scales_of, score, widen_query
from kernels.gpu.launch_table import count_tile_tokens, find_launch
from kernels.plans.decode_work import launch_shape_of
from kernels.plans.prefill_tiles import TILE_WORDS, max_prefill_tiles, plan_prefill_tiles

_TILE = tl.constexpr(TILE_WORDS)


def paged_prefill(query_THD: Tensor, cache: PagedKV, rows: PrefillRows, scale: float, out_THD: Tensor) -> None:
    """Without `rows.tiles` the list is planned here, which waits for the device."""
    num_heads, head_dim = query_THD.shape[1:]
    assert query_THD.stride()[1:] == (head_dim, 1)
    assert out_THD.is_contiguous()
    launch_shape = launch_shape_of(num_heads // cache.num_heads, head_dim, query_THD.dtype, cache.keys.dtype)
    tiles = _plan_here(len(query_THD), rows, launch_shape) if rows.tiles is None else rows.tiles
    assert tiles.shape[1] == TILE_WORDS
    assert tiles.is_contiguous()
    if not len(tiles):
        return
    attend[(len(tiles) * cache.num_heads,)](
        query_THD,
        cache.keys,
        cache.values,
        *scales_of(cache),
        rows.page_tables,
        rows.context_lens,
        tiles,
        out_THD,
        scale * LOG2_E,
        query_THD.stride(0),
        rows.page_tables.stride(0),
        QUERIES=num_heads // cache.num_heads,
        NUM_KV_HEADS=cache.num_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=cache.page_size,
        HAS_SCALES=cache.key_scales is not None,
        **find_launch("paged_prefill", *launch_shape),
    )


def _plan_here(num_tokens: int, rows: PrefillRows, launch_shape: tuple[int, int, int]) -> Tensor:
    tile_tokens = count_tile_tokens(*launch_shape)
    query_lens, context_lens = rows.query_lens.cpu().numpy(), rows.context_lens.cpu().numpy()
    tiles = torch.empty(max_prefill_tiles(num_tokens, len(query_lens), tile_tokens), TILE_WORDS, dtype=torch.int32)
    plan_prefill_tiles(query_lens, context_lens, tiles.numpy(), tile_tokens)
    return tiles.to(rows.query_lens.device)


@triton.jit(do_not_specialize=["table_stride"])
def attend(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    page_tables,
    context_lens,
    tiles,
    out,
    scale_log2,
    query_stride,
    table_stride,
    QUERIES: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    words = tiles + tl.program_id(0) // NUM_KV_HEADS * _TILE
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.load(words)
    if row < 0:
        return
    num_before = tl.load(context_lens + row) + tl.load(words + 1)
    first_token = tl.load(words + 2).to(tl.int64)
    num_queries = tl.load(words + 3)

    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * QUERIES
    query_M = tl.arange(0, BLOCK_M) // QUERIES
    head_M = kv_head * QUERIES + tl.arange(0, BLOCK_M) % QUERIES
    dim_D = tl.arange(0, BLOCK_D)
    is_used_MD = (query_M < num_queries)[:, None] & (dim_D < HEAD_DIM)[None, :]
    query_MD = tl.load(
        query + ((first_token + query_M) * query_stride + head_M * HEAD_DIM)[:, None] + dim_D[None, :],
        mask=is_used_MD,
        other=0.0,
    )
    page_table = page_tables + row.to(tl.int64) * table_stride
    keys += kv_head * HEAD_DIM
    values += kv_head * HEAD_DIM
    query_MD, scale = widen_query(query_MD, scale_log2, HAS_SCALES)
    max_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Whole blocks of keys that all queries see, and then those at the diagonal.
    end_key = num_before + num_queries
    first_masked = num_before // BLOCK_N * BLOCK_N
    for REACHES_END in tl.static_range(2):
        for start in range(first_masked if REACHES_END else 0, end_key if REACHES_END else first_masked, BLOCK_N):
            key_N = start + tl.arange(0, BLOCK_N)
            key_DN, value_ND, key_scale_N, value_scale_N = load_block(
                keys,
                values,
                key_scales,
                value_scales,
                page_table,
                key_N,
                end_key,
                kv_head,
                NUM_KV_HEADS,
                HEAD_DIM,
                PAGE_SIZE,
                BLOCK_D,
                HAS_SCALES,
                query_MD.dtype,
                REACHES_END,
            )
            score_MN = score(query_MD, key_DN, key_scale_N, scale, HAS_SCALES)
            if REACHES_END:
                is_seen_MN = (key_N < end_key)[None, :] & (key_N[None, :] <= num_before + query_M[:, None])
                score_MN = tl.where(is_seen_MN, score_MN, float("-inf"))
            max_M, sum_M, acc_MD = fold(score_MN, value_ND, value_scale_N, max_M, sum_M, acc_MD, HAS_SCALES)
    out_MD = (acc_MD / sum_M[:, None]).to(out.dtype.element_ty)
    out_M = ((first_token + query_M) * NUM_HEADS + head_M) * HEAD_DIM
    tl.store(out + out_M[:, None] + dim_D[None, :], out_MD, mask=is_used_MD)
