"""Prefill attention to long prompts in Triton: one program per tile of a row's new tokens and query head.

K and V of the rows are gathered into contiguous memory first, with zeros after each row's last key. From there the
tensor memory accelerator copies whole blocks, and no thread computes addresses. On a Hopper GPU the compiler divides a
program into warps that load and two groups of warps that compute half of the tile each: one computes its softmax while
the other multiplies (FlashAttention-3, arXiv:2407.08608). It can if there is one loop without conditions, which loads
through descriptors alone. So all blocks are masked, and a place in the list without a tile is a tile without keys.
Spans are loaded by threads: with them a program has warps of one kind.

Shape legend: T tokens of all rows, H query heads, D head dimension; in a program N keys, M tokens of one head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.gpu.key_blocks import LOG2_E, PRECISION, cap_log2_of, cap_scores, load_block
from kernels.gpu.launch_table import find_launch
from kernels.plans.prefill_tiles import LONG_TILE_TOKENS, TILE_WORDS

_TILE, _LOG2_E = tl.constexpr(TILE_WORDS), tl.constexpr(LOG2_E)


def attend_long_prompts(
    query_THD: Tensor, cache: PagedKV, rows: PrefillRows, tiles: Tensor, options: AttentionOptions, out_THD: Tensor
) -> None:
    """`tiles` are of `LONG_TILE_TOKENS`. Neither windows nor codes are for this kernel."""
    (num_tokens, num_heads, head_dim), num_kv_heads = query_THD.shape, cache.num_heads
    assert query_THD.stride()[1:] == (head_dim, 1)
    assert out_THD.is_contiguous()
    assert options.window is None
    assert cache.key_scales is None
    launch = find_launch("long_prefill", head_dim, int(rows.last_keys is not None))
    num_rows = len(rows.query_lens)
    num_blocks = triton.cdiv(rows.page_tables.shape[1] * cache.page_size, launch["BLOCK_N"])
    row_keys = num_blocks * launch["BLOCK_N"]
    gathered = cache.keys.new_empty(2, num_rows * row_keys, num_kv_heads, head_dim)
    gather[(num_rows, num_blocks, num_kv_heads)](
        *(cache.keys, cache.values, rows.page_tables, rows.query_lens, rows.context_lens, *gathered),
        rows.page_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=cache.page_size,
        BLOCK_N=launch["BLOCK_N"],
        **find_launch("gather_keys"),
    )
    triton.set_allocator(_allocate)
    unread = query_THD.new_empty(0, dtype=torch.float32)
    attend_gathered[(len(tiles) * num_heads,)](
        *(query_THD, *gathered, rows.context_lens, tiles, out_THD, unread if options.sinks is None else options.sinks),
        tiles if rows.last_keys is None else rows.last_keys,
        *(options.scale * LOG2_E, cap_log2_of(options), num_tokens, query_THD.stride(0), row_keys, num_rows * row_keys),
        QUERIES=num_heads // num_kv_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HAS_CAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        HAS_LAST_KEYS=rows.last_keys is not None,
        BLOCK_M=LONG_TILE_TOKENS,
        **launch,
    )


def _allocate(size: int, _alignment: int, _stream: int | None) -> Tensor:
    """Returns memory on the current GPU for the descriptors of a launch's programs."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit(do_not_specialize=["table_stride"])
def gather(
    keys,
    values,
    page_tables,
    query_lens,
    context_lens,
    gathered_keys,
    gathered_values,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Copies a block of a row's keys and values of one head, if it has any."""
    row, block, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    end_key = tl.load(query_lens + row) + tl.load(context_lens + row)
    key_N, dim_D = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    if block * BLOCK_N < end_key:
        first = kv_head * HEAD_DIM
        key_DN, value_ND, _, _ = load_block(
            *(keys + first, values + first, keys, values, page_tables + row * table_stride),
            *(None, key_N, end_key, kv_head),
            *(NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, HEAD_DIM, False, None, True),
        )
        place_N = (row * tl.num_programs(1) * BLOCK_N + key_N) * (NUM_KV_HEADS * HEAD_DIM) + first
        tl.store(gathered_keys + place_N[None, :] + dim_D[:, None], key_DN)
        tl.store(gathered_values + place_N[:, None] + dim_D[None, :], value_ND)


@triton.jit(do_not_specialize=["num_tokens", "row_keys", "num_keys"])
def attend_gathered(
    query,
    keys,
    values,
    context_lens,
    tiles,
    out,
    sinks,
    last_keys,
    scale_log2,
    cap_log2,
    num_tokens,
    query_stride,
    row_keys,
    num_keys,
    QUERIES: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LAST_KEYS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPECIALIZES: tl.constexpr,
):
    """Rows of the tile behind its last token are computed with what is there, and not stored."""
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * QUERIES
    KV_SIZE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    words, head = tiles + tl.program_id(0) // NUM_HEADS * _TILE, tl.program_id(0) % NUM_HEADS
    row, first_token = tl.load(words), tl.load(words + 2)
    num_queries = tl.where(row < 0, 0, tl.load(words + 3))
    row = tl.maximum(row, 0)
    num_before = tl.load(context_lens + row) + tl.load(words + 1)
    end_key = tl.where(num_queries > 0, num_before + num_queries, 0)
    queries = tl.make_tensor_descriptor(
        query, [num_tokens, NUM_HEADS * HEAD_DIM], [query_stride, 1], [BLOCK_M, HEAD_DIM]
    )
    key_blocks = tl.make_tensor_descriptor(keys, [num_keys, KV_SIZE], [KV_SIZE, 1], [BLOCK_N, HEAD_DIM])
    value_blocks = tl.make_tensor_descriptor(values, [num_keys, KV_SIZE], [KV_SIZE, 1], [BLOCK_N, HEAD_DIM])
    query_MD = queries.load([first_token, head * HEAD_DIM])
    query_M = tl.arange(0, BLOCK_M)
    last_M = num_before + query_M
    if HAS_LAST_KEYS:
        end_key = tl.load(last_keys + first_token + num_queries - 1, mask=num_queries > 0, other=-1) + 1
        last_M = tl.load(last_keys + first_token + query_M, mask=query_M < num_queries, other=0)
    max_M, sum_M = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # a sink counts as a first key without a value
        max_M, sum_M = sum_M + tl.load(sinks + head) * _LOG2_E, sum_M + 1.0
    acc_MD = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    first_row, first_dim = row * row_keys, head // QUERIES * HEAD_DIM
    for start in tl.range(0, end_key, BLOCK_N, warp_specialize=SPECIALIZES):
        key_ND = key_blocks.load([first_row + start, first_dim])
        value_ND = value_blocks.load([first_row + start, first_dim])
        score_MN = tl.dot(query_MD, key_ND.T, input_precision=PRECISION)
        scale = scale_log2
        if HAS_CAP:
            score_MN, scale = cap_scores(score_MN * scale_log2, cap_log2), 1.0
        key_N = start + tl.arange(0, BLOCK_N)
        score_MN = tl.where(key_N[None, :] <= last_M[:, None], score_MN, float("-inf"))
        # Scaling and subtracting the maximum are one instruction.
        new_max_M = tl.maximum(max_M, tl.max(score_MN, 1) * scale)
        weight_MN = tl.exp2(score_MN * scale - new_max_M[:, None])
        shrink_M = tl.exp2(max_M - new_max_M)
        sum_M = sum_M * shrink_M + tl.sum(weight_MN, 1)
        acc_MD = acc_MD * shrink_M[:, None]
        acc_MD = tl.dot(weight_MN.to(value_ND.dtype), value_ND, acc_MD, input_precision=PRECISION)
        max_M = new_max_M
    out_MD = (acc_MD / sum_M[:, None]).to(out.dtype.element_ty)
    out_M = ((first_token.to(tl.int64) + query_M) * NUM_HEADS + head) * HEAD_DIM
    tl.store(out + out_M[:, None] + tl.arange(0, HEAD_DIM)[None, :], out_MD, mask=(query_M < num_queries)[:, None])
