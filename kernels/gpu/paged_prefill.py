"""Prefill attention in Triton: one program per tile of a row's new tokens and key/value head.

With fixed launches decode rows are tiles of one token (`split_decode.py`), and a token's sums are those of its splits
(`kernels/plans/split_work.py`), added in their order. Splits and blocks of keys then begin at multiples of their sizes,
and all blocks are masked: keys that a token does not see add exact zeros. So a token's bits do not depend on the other
tokens of its tile. Products are not fused with sums, for the compiler would choose which by the code around them.

Shape legend: T tokens of all rows, H query heads, D head dimension; in a program N keys, M rows of products: the query
heads of the key/value head, token by token.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.gpu.key_blocks import (
    LOG2_E,
    LOWEST,
    cap_log2_of,
    cap_scores,
    fold,
    load_block,
    scales_of,
    score,
    widen_query,
)
from kernels.gpu.launch_table import count_tile_tokens, find_launch, has_fixed_launches
from kernels.gpu.long_prefill import attend_long_prompts
from kernels.plans.decode_work import DecodeScratch, launch_shape_of
from kernels.plans.prefill_tiles import TILE_WORDS, max_prefill_tiles, plan_prefill_tiles
from kernels.plans.split_work import SPLIT_KEYS

_TILE, _LOG2_E = tl.constexpr(TILE_WORDS), tl.constexpr(LOG2_E)


def paged_prefill(
    query_THD: Tensor, cache: PagedKV, rows: PrefillRows, options: AttentionOptions, out_THD: Tensor
) -> None:
    """Without `rows.tiles` the list is planned here, which waits for the device."""
    if rows.is_long and rows.tiles is not None:
        attend_long_prompts(query_THD, cache, rows, rows.tiles, options, out_THD)
        return
    launch_shape = _launch_shape(query_THD, cache)
    tiles = _plan_here(len(query_THD), rows, launch_shape) if rows.tiles is None else rows.tiles
    if len(tiles):
        columns = rows.page_tables, rows.context_lens, tiles
        attend_tiles(query_THD, cache, columns, options, out_THD, last_keys_T=rows.last_keys)


def attend_tiles(
    query_THD: Tensor,
    cache: PagedKV,
    columns: tuple[Tensor, Tensor, Tensor],
    options: AttentionOptions,
    out_THD: Tensor,
    scratch: DecodeScratch | None = None,
    last_keys_T: Tensor | None = None,
) -> None:
    """`columns`: the page tables and lengths of rows, and tiles; `scratch` has room for parts, if there are any."""
    (page_tables, lens, tiles), (num_heads, head_dim) = columns, query_THD.shape[1:]
    assert query_THD.stride()[1:] == (head_dim, 1)
    assert out_THD.is_contiguous()
    assert tiles.shape[1] == TILE_WORDS
    assert tiles.is_contiguous()
    is_fixed = has_fixed_launches()
    unread = out_THD.new_empty(0, dtype=torch.float32)
    parts = (unread, unread, unread) if scratch is None else (scratch.partials, *scratch.lses.chunk(2))
    sinks = unread if options.sinks is None else options.sinks
    attend[(len(tiles) * cache.num_heads,)](
        *(query_THD, cache.keys, cache.values, *scales_of(cache), page_tables, lens, tiles, *parts, out_THD, sinks),
        tiles if last_keys_T is None else last_keys_T,
        *(options.scale * LOG2_E, cap_log2_of(options), query_THD.stride(0), page_tables.stride(0)),
        QUERIES=num_heads // cache.num_heads,
        NUM_KV_HEADS=cache.num_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=cache.page_size,
        HAS_SCALES=cache.key_scales is not None,
        WINDOW=options.window or 0,
        HAS_CAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        HAS_LAST_KEYS=last_keys_T is not None,
        SPLIT=SPLIT_KEYS if is_fixed else 0,
        **find_launch("split_attention" if is_fixed else "paged_prefill", *_launch_shape(query_THD, cache)),
    )


def _launch_shape(query_THD: Tensor, cache: PagedKV) -> tuple[int, int, int]:
    queries = query_THD.shape[1] // cache.num_heads
    return launch_shape_of(queries, cache.head_dim, query_THD.dtype, cache.keys.dtype)


def _plan_here(num_tokens: int, rows: PrefillRows, launch_shape: tuple[int, int, int]) -> Tensor:
    tile_tokens = count_tile_tokens(*launch_shape)
    query_lens, context_lens = rows.query_lens.cpu().numpy(), rows.context_lens.cpu().numpy()
    tiles = torch.empty(max_prefill_tiles(num_tokens, len(query_lens), tile_tokens), TILE_WORDS, dtype=torch.int32)
    plan_prefill_tiles(query_lens, context_lens, tiles.numpy(), tile_tokens)
    return tiles.to(rows.query_lens.device)


@triton.jit
def add_split(max_M, sum_M, acc_MD, total_max_M, total_sum_M, total_MD):
    """Returns the totals after one more split, which may have none of a token's keys: they are then what they were."""
    new_max_M = tl.maximum(total_max_M, max_M)
    shrink_M, weight_M = tl.exp2(total_max_M - new_max_M), tl.exp2(max_M - new_max_M)
    total_sum_M = total_sum_M * shrink_M + sum_M * weight_M
    return new_max_M, total_sum_M, total_MD * shrink_M[:, None] + acc_MD * weight_M[:, None]


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
    partials,
    maxima,
    sums,
    out,
    sinks,
    last_keys,
    scale_log2,
    cap_log2,
    query_stride,
    table_stride,
    QUERIES: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LAST_KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
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
    cache = keys + kv_head * HEAD_DIM, values + kv_head * HEAD_DIM, key_scales, value_scales, page_table
    query_MD, scale = widen_query(query_MD, scale_log2, HAS_SCALES)
    total_max_M = tl.full([BLOCK_M], LOWEST if WINDOW or SPLIT else float("-inf"), tl.float32)
    total_sum_M = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # a sink counts as a first key without a value
        is_first = tl.load(words + 7) > 0
        total_max_M = tl.where(is_first, tl.load(sinks + head_M) * _LOG2_E, total_max_M)
        total_sum_M += tl.where(is_first, 1.0, 0.0)
    total_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    max_M, sum_M, acc_MD = total_max_M, total_sum_M, total_MD
    # Blocks in which windows begin, then whole blocks that all queries see, then those at the diagonal.
    end_key = num_before + num_queries
    end_whole = num_before // BLOCK_N * BLOCK_N
    first_key, begin, first_whole = None, 0, 0
    if WINDOW:
        first_key = tl.maximum(num_before + 1 - WINDOW, 0)
        begin = first_key // BLOCK_N * BLOCK_N
        first_whole = tl.minimum(tl.cdiv(tl.maximum(end_key - WINDOW, 0), BLOCK_N) * BLOCK_N, end_whole)
    position_M = num_before + query_M
    last_M = position_M
    if HAS_LAST_KEYS:
        end_key = tl.load(last_keys + first_token + num_queries - 1) + 1
        last_M = tl.load(last_keys + first_token + query_M, mask=query_M < num_queries, other=0)
    first_split, end_split = 0, 1
    if SPLIT:
        first_split = tl.maximum(tl.load(words + 4), begin // SPLIT)
        end_split = tl.minimum(tl.load(words + 5), tl.cdiv(end_key, SPLIT))
    for split in range(first_split, end_split):
        if SPLIT:  # all of its blocks are of the first stage
            max_M, sum_M = tl.full([BLOCK_M], LOWEST, tl.float32), tl.zeros([BLOCK_M], tl.float32)
            acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        first_begin = tl.maximum(split * SPLIT, begin) if SPLIT else begin
        first_end = tl.minimum(split * SPLIT + SPLIT, end_key) if SPLIT else first_whole
        for STAGE in tl.static_range(0 if WINDOW or SPLIT else 1, 1 if SPLIT else 3):
            for start in range(
                first_begin if STAGE == 0 else first_whole if STAGE == 1 else end_whole,
                first_end if STAGE == 0 else end_whole if STAGE == 1 else end_key,
                BLOCK_N,
            ):
                key_N = start + tl.arange(0, BLOCK_N)
                key_DN, value_ND, key_scale_N, value_scale_N = load_block(
                    *cache,
                    first_key,
                    *(key_N, end_key, kv_head),
                    *(NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_D, HAS_SCALES, query_MD.dtype, STAGE != 1),
                )
                score_MN = score(query_MD, key_DN, key_scale_N, scale, HAS_SCALES)
                if HAS_CAP:
                    score_MN = cap_scores(score_MN, cap_log2)
                if STAGE != 1:
                    is_seen_MN = (key_N < end_key)[None, :] & (key_N[None, :] <= last_M[:, None])
                    if WINDOW:
                        is_seen_MN &= key_N[None, :] > position_M[:, None] - WINDOW
                    score_MN = tl.where(is_seen_MN, score_MN, float("-inf"))
                max_M, sum_M, acc_MD = fold(score_MN, value_ND, value_scale_N, max_M, sum_M, acc_MD, HAS_SCALES)
        if SPLIT:
            total_max_M, total_sum_M, total_MD = add_split(max_M, sum_M, acc_MD, total_max_M, total_sum_M, total_MD)
    if SPLIT:
        max_M, sum_M, acc_MD = total_max_M, total_sum_M, total_MD
        part = tl.load(words + 6)
        if part >= 0:
            part_M = part * NUM_HEADS + head_M
            is_used_M = query_M < num_queries
            tl.store(maxima + part_M, max_M, mask=is_used_M)
            tl.store(sums + part_M, sum_M, mask=is_used_M)
            tl.store(partials + (part_M * HEAD_DIM)[:, None] + dim_D[None, :], acc_MD, mask=is_used_MD)
            return
    out_MD = (acc_MD / sum_M[:, None]).to(out.dtype.element_ty)
    out_M = ((first_token + query_M) * NUM_HEADS + head_M) * HEAD_DIM
    tl.store(out + out_M[:, None] + dim_D[None, :], out_MD, mask=is_used_MD)
