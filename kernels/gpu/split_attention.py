"""Attention in Triton with fixed launches: decode rows, prompts and drafts are computed by one kernel with one tile.

Shape legend: T tokens, R rows, H query heads, G key/value heads, D head dimension; in a program N keys, M rows of
products: the query heads of the key/value head, token by token.

A token's sums are those of its splits (`kernels/plans/split_work.py`), added in their order. A split begins at a
multiple of `SPLIT_KEYS`, its blocks of keys at multiples of BLOCK_N, and every block is masked: what a token does not
see adds exact zeros. So a token has the same bits as a decode row and in a tile with any others. The kernels are
compiled without fused products and sums, which the compiler would choose in each place by itself.
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
from kernels.gpu.launch_table import find_launch
from kernels.gpu.paged_prefill import plan_here
from kernels.plans.decode_work import DecodeScratch, DecodeWork, launch_shape_of
from kernels.plans.prefill_tiles import TILE_WORDS
from kernels.plans.split_work import SPLIT_KEYS, SplitLayout, make_split_scratch, plan_split_work

_TILE, _SPLIT = tl.constexpr(TILE_WORDS), tl.constexpr(SPLIT_KEYS)
_LOG2_E = tl.constexpr(LOG2_E)
_MERGED_AT_A_TIME = tl.constexpr(4)
"""Parts whose loads do not wait for each other."""


def paged_decode(
    query_RHD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    options: AttentionOptions,
    out_RHD: Tensor,
    work: DecodeWork | None,
) -> None:
    """Without `work` the list is planned here, which waits for the device."""
    if work is None:
        work = _plan_here(query_RHD, cache, num_keys_R, options.window)
    layout, scratch, (num_heads, head_dim) = work.layout, work.scratch, query_RHD.shape[1:]
    assert isinstance(layout, SplitLayout)
    assert work.plan.shape == (layout.num_words,)
    tiles = work.plan[: layout.parts_word].view(-1, TILE_WORDS)
    _attend(query_RHD, cache, (page_tables_RP, num_keys_R, tiles), options, out_RHD, scratch)
    merge[(layout.max_rows * num_heads,)](
        *(work.plan[layout.parts_word :], scratch.partials, *scratch.lses.chunk(2), out_RHD),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        **find_launch("split_merge", head_dim),
    )


def paged_prefill(
    query_THD: Tensor, cache: PagedKV, rows: PrefillRows, options: AttentionOptions, out_THD: Tensor
) -> None:
    """Without `rows.tiles` the list is planned here, which waits for the device."""
    tiles = rows.tiles
    if tiles is None:
        queries, head_dim = query_THD.shape[1] // cache.num_heads, query_THD.shape[2]
        tiles = plan_here(len(query_THD), rows, launch_shape_of(queries, head_dim, query_THD.dtype, cache.keys.dtype))
    if len(tiles):
        _attend(query_THD, cache, (rows.page_tables, rows.context_lens, tiles), options, out_THD, None)


def _attend(
    query_THD: Tensor,
    cache: PagedKV,
    columns: tuple[Tensor, Tensor, Tensor],
    options: AttentionOptions,
    out_THD: Tensor,
    scratch: DecodeScratch | None,
) -> None:
    """`columns`: the page tables, lengths and tiles of the rows."""
    (page_tables, lens, tiles), (num_heads, head_dim) = columns, query_THD.shape[1:]
    assert query_THD.stride()[1:] == (head_dim, 1)
    assert out_THD.is_contiguous()
    assert tiles.is_contiguous()
    assert tiles.shape[1] == TILE_WORDS
    floats = lens.new_empty(0, dtype=torch.float32) if scratch is None else scratch.partials
    attend[(len(tiles) * cache.num_heads,)](
        *(query_THD, cache.keys, cache.values, *scales_of(cache), page_tables, lens, tiles),
        *(floats, *((floats, floats) if scratch is None else scratch.lses.chunk(2)), out_THD),
        floats if options.sinks is None else options.sinks,  # not read without sinks
        *(options.scale * LOG2_E, cap_log2_of(options), query_THD.stride(0), page_tables.stride(0)),
        QUERIES=num_heads // cache.num_heads,
        NUM_KV_HEADS=cache.num_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=cache.page_size,
        HAS_SCALES=cache.key_scales is not None,
        WINDOW=options.window or 0,
        HAS_CAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        **find_launch(
            "split_attention",
            *launch_shape_of(num_heads // cache.num_heads, head_dim, query_THD.dtype, cache.keys.dtype),
        ),
    )


def _plan_here(query_RHD: Tensor, cache: PagedKV, num_keys_R: Tensor, window: int | None) -> DecodeWork:
    (num_rows, num_heads, head_dim), device = query_RHD.shape, query_RHD.device
    layout = SplitLayout(num_rows, num_heads)
    plan, num_keys = torch.zeros(layout.num_words, dtype=torch.int32), num_keys_R.cpu().numpy()
    plan_split_work(layout, num_keys, num_keys, cache.page_size, plan.numpy(), window)
    return DecodeWork(layout, plan.to(device), make_split_scratch(layout, head_dim, device))


@triton.jit
def add_split(max_M, sum_M, acc_MD, total_max_M, total_sum_M, total_MD):
    """Returns the totals after one more split, which may have none of a token's keys: they are then what they were."""
    new_max_M = tl.maximum(total_max_M, max_M)
    shrink_M, weight_M = tl.exp2(total_max_M - new_max_M), tl.exp2(max_M - new_max_M)
    total_sum_M = total_sum_M * shrink_M + sum_M * weight_M
    return new_max_M, total_sum_M, total_MD * shrink_M[:, None] + acc_MD * weight_M[:, None]


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["page_tables", "lens", "tiles"],
)
def attend(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    page_tables,
    lens,
    tiles,
    partials,
    maxima,
    sums,
    out,
    sinks,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    words = tiles + tl.program_id(0) // NUM_KV_HEADS * _TILE
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.load(words)
    if row < 0:
        return
    num_before = tl.load(lens + row) + tl.load(words + 1)
    first_token = tl.load(words + 2).to(tl.int64)
    num_queries = tl.load(words + 3)
    part = tl.load(words + 6)

    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * QUERIES
    query_M = tl.arange(0, BLOCK_M) // QUERIES
    head_M = kv_head * QUERIES + tl.arange(0, BLOCK_M) % QUERIES
    position_M = num_before + query_M
    dim_D = tl.arange(0, BLOCK_D)
    is_used_M = query_M < num_queries
    is_used_MD = is_used_M[:, None] & (dim_D < HEAD_DIM)[None, :]
    query_MD = tl.load(
        query + ((first_token + query_M) * query_stride + head_M * HEAD_DIM)[:, None] + dim_D[None, :],
        mask=is_used_MD,
        other=0.0,
    )
    page_table = page_tables + row.to(tl.int64) * table_stride
    keys += kv_head * HEAD_DIM
    values += kv_head * HEAD_DIM
    query_MD, scale = widen_query(query_MD, scale_log2, HAS_SCALES)
    total_max_M, total_sum_M = tl.full([BLOCK_M], LOWEST, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # a sink counts as a first key without a value
        is_first = tl.load(words + 7) > 0
        total_max_M = tl.where(is_first, tl.load(sinks + head_M) * _LOG2_E, total_max_M)
        total_sum_M += tl.where(is_first, 1.0, 0.0)
    total_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end_key = num_before + num_queries
    first_key = tl.maximum(num_before + 1 - WINDOW, 0) if WINDOW else 0
    first_split = tl.maximum(tl.load(words + 4), first_key // _SPLIT)
    for split in range(first_split, tl.minimum(tl.load(words + 5), tl.cdiv(end_key, _SPLIT))):
        max_M, sum_M = tl.full([BLOCK_M], LOWEST, tl.float32), tl.zeros([BLOCK_M], tl.float32)
        acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        begin = tl.maximum(split * _SPLIT, first_key // BLOCK_N * BLOCK_N)
        for start in range(begin, tl.minimum(split * _SPLIT + _SPLIT, end_key), BLOCK_N):
            key_N = start + tl.arange(0, BLOCK_N)
            key_DN, value_ND, key_scale_N, value_scale_N = load_block(
                keys,
                values,
                key_scales,
                value_scales,
                page_table,
                key_N,
                first_key,
                end_key,
                kv_head,
                NUM_KV_HEADS,
                HEAD_DIM,
                PAGE_SIZE,
                BLOCK_D,
                HAS_SCALES,
                query_MD.dtype,
                True,
            )
            score_MN = score(query_MD, key_DN, key_scale_N, scale, HAS_SCALES)
            if HAS_CAP:
                score_MN = cap_scores(score_MN, cap_log2)
            is_seen_MN = key_N[None, :] <= position_M[:, None]
            if WINDOW:
                is_seen_MN &= key_N[None, :] > position_M[:, None] - WINDOW
            score_MN = tl.where(is_seen_MN, score_MN, float("-inf"))
            max_M, sum_M, acc_MD = fold(score_MN, value_ND, value_scale_N, max_M, sum_M, acc_MD, HAS_SCALES)
        total_max_M, total_sum_M, total_MD = add_split(max_M, sum_M, acc_MD, total_max_M, total_sum_M, total_MD)
    if part < 0:
        out_M = ((first_token + query_M) * NUM_HEADS + head_M) * HEAD_DIM
        out_MD = (total_MD / total_sum_M[:, None]).to(out.dtype.element_ty)
        tl.store(out + out_M[:, None] + dim_D[None, :], out_MD, mask=is_used_MD)
    else:
        part_M = part * NUM_HEADS + head_M
        tl.store(maxima + part_M, total_max_M, mask=is_used_M)
        tl.store(sums + part_M, total_sum_M, mask=is_used_M)
        tl.store(partials + (part_M * HEAD_DIM)[:, None] + dim_D[None, :], total_MD, mask=is_used_MD)


@triton.jit(do_not_specialize_on_alignment=["first_parts", "out"])
def merge(
    first_parts, partials, maxima, sums, out, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Adds the parts of a row that has some; its first one includes the sink."""
    row = tl.program_id(0) // NUM_HEADS
    head = tl.program_id(0) % NUM_HEADS
    first_part, end_part = tl.load(first_parts + row), tl.load(first_parts + row + 1)
    if first_part == end_part:
        return
    dim_D, only_M = tl.arange(0, BLOCK_D), tl.arange(0, 1)
    is_dim_D = dim_D < HEAD_DIM
    max_M, sum_M = tl.full([1], LOWEST, tl.float32), tl.zeros([1], tl.float32)
    acc_MD = tl.zeros([1, BLOCK_D], tl.float32)
    for start in range(first_part, end_part, _MERGED_AT_A_TIME):
        for place in tl.static_range(_MERGED_AT_A_TIME):
            part_M = start + place + only_M
            is_part_M, part_head_M = part_M < end_part, part_M * NUM_HEADS + head
            part_max_M = tl.load(maxima + part_head_M, mask=is_part_M, other=LOWEST)
            part_sum_M = tl.load(sums + part_head_M, mask=is_part_M, other=0.0)
            part_MD = tl.load(
                partials + (part_head_M * HEAD_DIM)[:, None] + dim_D[None, :],
                mask=is_part_M[:, None] & is_dim_D[None, :],
                other=0.0,
            )
            max_M, sum_M, acc_MD = add_split(part_max_M, part_sum_M, part_MD, max_M, sum_M, acc_MD)
    out_D = out + (row.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + dim_D
    tl.store(out_D[None, :], (acc_MD / sum_M[:, None]).to(out.dtype.element_ty), mask=is_dim_D[None, :])
