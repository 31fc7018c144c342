"""Decode attention in Triton: one program per item of the work list and key/value head.

Shape legend: R rows, H query heads, G key/value heads, D head dimension, P pages a row (padded); in a program M lanes
(query heads of the item's entries), N keys.

A row's keys may be split among programs (FlashDecoding): each writes the attention over its own keys and the logarithm
of its sum, which the merge needs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.gpu.cache_lines import count_lines, prefetch_part
from kernels.gpu.fp8_blocks import attend_codes
from kernels.gpu.fusions import dependent_launch, is_fused
from kernels.gpu.key_blocks import LOG2_E, cap_log2_of, cap_scores, fold, load_block, scales_of, score, widen_query
from kernels.gpu.launch_table import find_launch
from kernels.gpu.occupancy import count_side_by_side, processor_of
from kernels.plans.decode_work import (
    ENTRIES_PLACE,
    ENTRY_WORDS,
    HEADER_WORDS,
    ITEM_WORDS,
    PARTS_PLACE,
    UNCOMPILED,
    DecodeLayout,
    DecodeShape,
    DecodeWork,
    launch_shape_of,
    make_decode_scratch,
    plan_decode_work,
)

PLAIN = AttentionOptions(1.0)

_HEADER, _ITEM, _ENTRY = tl.constexpr(HEADER_WORDS), tl.constexpr(ITEM_WORDS), tl.constexpr(ENTRY_WORDS)
_LOG2_E = tl.constexpr(LOG2_E)
_ENTRIES_PLACE, _PARTS_PLACE = tl.constexpr(ENTRIES_PLACE), tl.constexpr(PARTS_PLACE)


def paged_decode(
    query_RHD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    options: AttentionOptions,
    out_RHD: Tensor,
    work: DecodeWork | None,
) -> None:
    """Without `work` the list is planned here for a few programs, which waits for the device."""
    if work is None:
        work = _plan_here(query_RHD, cache, page_tables_RP, num_keys_R, options.window)
    layout, scratch = work.layout, work.scratch
    assert isinstance(layout, DecodeLayout)
    sinks = scratch.lses if options.sinks is None else options.sinks  # not read without sinks
    next_weight = prefetched(options)
    num_heads, head_dim = query_RHD.shape[1:]
    assert (layout.num_heads, layout.num_kv_heads) == (num_heads, cache.num_heads)
    assert query_RHD.stride()[1:] == (head_dim, 1)
    assert out_RHD.is_contiguous()
    assert work.plan.shape == (layout.num_words,)
    assert scratch.partials.shape[0] >= layout.max_entries
    assert scratch.partials.shape[1:] == query_RHD.shape[1:]
    assert scratch.counters.shape[0] >= layout.max_rows
    attend[(layout.max_items * layout.num_kv_heads,)](
        query_RHD,
        cache.keys,
        cache.values,
        *scales_of(cache),
        page_tables_RP,
        work.plan,
        scratch.partials,
        scratch.lses,
        scratch.counters,
        out_RHD,
        sinks,
        sinks if next_weight is None else next_weight,
        options.scale * LOG2_E,
        cap_log2_of(options),
        query_RHD.stride(0),
        page_tables_RP.stride(0),
        HEAD_DIM=head_dim,
        PAGE_SIZE=cache.page_size,
        HAS_SCALES=cache.key_scales is not None,
        **constants_of(layout, options),
        **_find_form(layout.queries_a_head, head_dim, query_RHD.dtype, cache.keys.dtype),
        **dependent_launch(),
    )
    if layout.merges_in_kernel:
        return
    merge[(layout.max_rows * num_heads,)](
        work.plan,
        scratch.partials,
        scratch.lses,
        out_RHD,
        sinks,
        HAS_SINKS=options.sinks is not None,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        **find_launch("paged_decode_merge", head_dim),
    )


def constants_of(layout: DecodeLayout, options: AttentionOptions = PLAIN) -> dict[str, int]:
    return {
        "NUM_KV_HEADS": layout.num_kv_heads,
        "QUERIES": layout.queries_a_head,
        "BLOCK_M": layout.block_lanes,
        "MERGES": layout.merges_in_kernel,
        "HAS_CAP": options.softcap is not None,
        "HAS_SINKS": options.sinks is not None,
        "NEXT_LINES": 0 if (next_weight := prefetched(options)) is None else count_lines(next_weight),
        "IS_DEPENDENT": is_fused("dependent"),
    }


def _find_form(queries_a_head: int, head_dim: int, dtype: torch.dtype, cached: torch.dtype) -> dict[str, int]:
    """Returns the launch, and whether products take the codes of the cache, for which queries have 16 bits and heads
    the size of an fp8 product at least."""
    has_codes = cached == torch.float8_e4m3fn and dtype != torch.float32 and head_dim >= 32 and head_dim % 4 == 0
    in_fp8 = has_codes and is_fused("fp8_attention")
    shape = launch_shape_of(queries_a_head, head_dim, dtype, cached)
    return {**find_launch("paged_decode_fp8" if in_fp8 else "paged_decode", *shape), "IN_FP8": in_fp8}


def prefetched(options: AttentionOptions) -> Tensor | None:
    """Returns what programs without an item prefetch, if they do."""
    return options.next_weight if is_fused("prefetch") else None


def programs_a_processor(shape: DecodeShape, properties: Any) -> int:
    """Returns how many programs per processor of the current device, which has these properties, get an item.

    Unless the table sets it, this is the number that run side by side: the kernel is compiled for tensors of this shape
    but not launched.
    """
    cut = find_launch("decode_work", *shape.launch_shape)
    if cut["programs"]:
        return cut["programs"]
    floats, indices, sums = shape.dtype, torch.int32, torch.float32
    cached, scales = (shape.kv_codes, SCALE_DTYPE) if shape.kv_codes else (floats, floats)
    layout = DecodeLayout(
        1, shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, False, merges_in_kernel=bool(cut["merges"])
    )
    compiled = attend.warmup(
        *(floats, cached, cached, scales, scales, indices, indices, sums, sums, indices, floats, sums, sums),
        1.0,
        1.0,
        (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim,
        1,
        HEAD_DIM=shape.head_dim,
        PAGE_SIZE=shape.page_size,
        HAS_SCALES=shape.kv_codes is not None,
        **constants_of(layout),
        **_find_form(layout.queries_a_head, shape.head_dim, shape.dtype, cached),
        grid=(1,),
    )
    compiled._init_handles()  # its registers are known once it is loaded
    metadata = compiled.metadata
    return count_side_by_side(compiled.n_regs, metadata.shared, metadata.num_warps, processor_of(properties))


def _plan_here(
    query_RHD: Tensor, cache: PagedKV, page_tables_RP: Tensor, num_keys_R: Tensor, window: int | None
) -> DecodeWork:
    num_rows, num_heads, head_dim = query_RHD.shape
    layout = DecodeLayout(num_rows, num_heads, cache.num_heads, UNCOMPILED, shares_prefixes=False)
    plan = torch.zeros(layout.num_words, dtype=torch.int32)
    rows = num_keys_R.cpu().numpy(), page_tables_RP.cpu().numpy()
    plan_decode_work(layout, *rows, cache.page_size, plan.numpy(), window)
    device = query_RHD.device
    return DecodeWork(layout, plan.to(device), make_decode_scratch(layout, head_dim, device))


@triton.jit(do_not_specialize=["table_stride"])
def attend(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    page_tables,
    plan,
    partials,
    lses,
    counters,
    out,
    sinks,
    next_weight,
    scale_log2,
    cap_log2,
    query_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGES: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    NEXT_LINES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()  # for the query, and for the K and V of its tokens
    item = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    num_items = tl.load(plan)
    if item >= num_items:
        if NEXT_LINES > 0:
            busy = num_items * NUM_KV_HEADS
            prefetch_part(next_weight, tl.program_id(0) - busy, tl.num_programs(0) - busy, NEXT_LINES)
        return
    words = plan + _HEADER + item * _ITEM
    first_key = tl.load(words)
    end_key = tl.load(words + 1)
    entries = plan + tl.load(plan + _ENTRIES_PLACE) + tl.load(words + 2) * _ENTRY
    num_entries = tl.load(words + 3)

    lane_M = tl.arange(0, BLOCK_M)
    entry_M = lane_M // QUERIES
    is_used_M = entry_M < num_entries
    row_M = tl.load(entries + entry_M * _ENTRY, mask=is_used_M, other=0)
    part_M = tl.load(entries + entry_M * _ENTRY + 1, mask=is_used_M, other=-1)
    head_M = kv_head * QUERIES + lane_M % QUERIES
    dim_D = tl.arange(0, BLOCK_D)
    is_dim_D = dim_D < HEAD_DIM
    is_used_MD = is_used_M[:, None] & is_dim_D[None, :]
    query_M = row_M.to(tl.int64) * query_stride + head_M * HEAD_DIM
    query_MD = tl.load(query + query_M[:, None] + dim_D[None, :], mask=is_used_MD, other=0.0)

    # All entries have the same pages here.
    page_table = page_tables + tl.load(entries).to(tl.int64) * table_stride
    cache = keys + kv_head * HEAD_DIM, values + kv_head * HEAD_DIM, key_scales, value_scales, page_table
    if IN_FP8:
        max_M, sum_M, acc_MD = attend_codes(
            *(query_MD, cache, first_key, end_key, kv_head, scale_log2, cap_log2),
            *(NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, BLOCK_D, HAS_CAP),
        )
    else:
        query_MD, scale = widen_query(query_MD, scale_log2, HAS_SCALES)
        max_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
        sum_M = tl.zeros([BLOCK_M], tl.float32)
        acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        # Whole blocks of keys without masks, then the rest.
        end_whole = end_key - (end_key - first_key) % BLOCK_N
        for REACHES_END in tl.static_range(2):
            for start in range(end_whole if REACHES_END else first_key, end_key if REACHES_END else end_whole, BLOCK_N):
                key_N = start + tl.arange(0, BLOCK_N)
                key_DN, value_ND, key_scale_N, value_scale_N = load_block(
                    *cache,
                    None,
                    *(key_N, end_key, kv_head),
                    *(NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_D, HAS_SCALES, query_MD.dtype, REACHES_END),
                )
                score_MN = score(query_MD, key_DN, key_scale_N, scale, HAS_SCALES)
                if HAS_CAP:
                    score_MN = cap_scores(score_MN, cap_log2)
                if REACHES_END:
                    score_MN = tl.where((key_N < end_key)[None, :], score_MN, float("-inf"))
                max_M, sum_M, acc_MD = fold(score_MN, value_ND, value_scale_N, max_M, sum_M, acc_MD, HAS_SCALES)
    total_M = sum_M
    if HAS_SINKS:  # of a row with several parts, when they are merged
        sink_M = tl.load(sinks + head_M) * _LOG2_E
        total_M += tl.where(part_M < 0, tl.exp2(sink_M - max_M), 0.0)
    acc_MD = acc_MD / total_M[:, None]

    # A row's only entry writes the row, any other writes a part.
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * QUERIES
    is_only_M = is_used_M & (part_M < 0)
    is_part_M = is_used_M & (part_M >= 0)
    out_M = (row_M.to(tl.int64) * NUM_HEADS + head_M) * HEAD_DIM
    out_MD = acc_MD.to(out.dtype.element_ty)
    tl.store(out + out_M[:, None] + dim_D[None, :], out_MD, mask=is_only_M[:, None] & is_dim_D[None, :])
    part_head_M = part_M.to(tl.int64) * NUM_HEADS + head_M
    partial_M = part_head_M * HEAD_DIM
    tl.store(partials + partial_M[:, None] + dim_D[None, :], acc_MD, mask=is_part_M[:, None] & is_dim_D[None, :])
    tl.store(lses + part_head_M, max_M + tl.log2(sum_M), mask=is_part_M)
    if MERGES:
        # The barrier orders this program's stores before its release; the last one to count has acquired the others'.
        tl.debug_barrier()
        entry_row_M = tl.load(entries + lane_M * _ENTRY, mask=lane_M < num_entries, other=0)
        parts = plan + tl.load(plan + _PARTS_PLACE)
        num_parts_M = tl.load(parts + entry_row_M + 1) - tl.load(parts + entry_row_M)
        is_counted_M = (lane_M < num_entries) & (num_parts_M > 0)
        counter_M = counters + entry_row_M * NUM_KV_HEADS + kv_head
        count_M = tl.atomic_add(counter_M, 1, mask=is_counted_M, sem="acq_rel", scope="gpu")
        is_last_M = is_counted_M & (count_M == num_parts_M - 1)
        tl.store(counter_M, 0, mask=is_last_M)  # ready for the next layer
        for entry in range(num_entries):
            if tl.sum(tl.where(lane_M == entry, is_last_M.to(tl.int32), 0)) > 0:
                row = tl.load(entries + entry * _ENTRY)
                for query_head in range(QUERIES):
                    head = kv_head * QUERIES + query_head
                    _merge_row(
                        plan, partials, lses, out, sinks, row, head, NUM_HEADS, HEAD_DIM, BLOCK_M, BLOCK_D, HAS_SINKS
                    )


@triton.jit
def merge(
    plan,
    partials,
    lses,
    out,
    sinks,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    row = tl.program_id(0) // NUM_HEADS
    head = tl.program_id(0) % NUM_HEADS
    _merge_row(plan, partials, lses, out, sinks, row, head, NUM_HEADS, HEAD_DIM, BLOCK_P, BLOCK_D, HAS_SINKS)


@triton.jit
def _merge_row(
    plan,
    partials,
    lses,
    out,
    sinks,
    row,
    head,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Writes one head of a row that has parts, adding them in order: the result is the same bits each time."""
    parts = plan + tl.load(plan + _PARTS_PLACE)
    first_part = tl.load(parts + row)
    end_part = tl.load(parts + row + 1)
    if first_part < end_part:
        dim_D = tl.arange(0, BLOCK_D)
        is_dim_D = dim_D < HEAD_DIM
        largest = float("-inf")
        total = 0.0
        if HAS_SINKS:
            largest, total = tl.load(sinks + head) * _LOG2_E, 1.0
        acc_D = tl.zeros([BLOCK_D], tl.float32)
        for start in range(first_part, end_part, BLOCK_P):
            part_P = start + tl.arange(0, BLOCK_P)
            is_part_P = part_P < end_part
            part_head_P = part_P.to(tl.int64) * NUM_HEADS + head
            # Bypasses the L1 cache, which other processors' stores do not reach.
            lse_P = tl.load(lses + part_head_P, mask=is_part_P, other=float("-inf"), cache_modifier=".cg")
            partial_PD = tl.load(
                partials + part_head_P[:, None] * HEAD_DIM + dim_D[None, :],
                mask=is_part_P[:, None] & is_dim_D[None, :],
                other=0.0,
                cache_modifier=".cg",
            )
            new_largest = tl.maximum(largest, tl.max(lse_P, 0))
            shrink = tl.exp2(largest - new_largest)
            weight_P = tl.exp2(lse_P - new_largest)
            total = total * shrink + tl.sum(weight_P, 0)
            acc_D = acc_D * shrink + tl.sum(partial_PD * weight_P[:, None], 0)
            largest = new_largest
        out_head = (row.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM
        tl.store(out + out_head + dim_D, (acc_D / total).to(out.dtype.element_ty), mask=is_dim_D)
