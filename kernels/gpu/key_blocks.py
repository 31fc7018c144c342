"""A block of keys in decode and prefill attention: it is read through the page table and added to the softmax.

Shape legend: M queries of a program, N keys of a block, D head dimension (padded to a power of two), W words.

The softmax is computed as running maximum, sum and output, to base 2 (FlashAttention-2, arXiv:2307.08691).
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV

LOG2_E = 1.4426950408889634
"""Scores times this are exponents of 2, which the hardware computes."""

_TWO_LOG2_E = tl.constexpr(2 * LOG2_E)

LOWEST = tl.constexpr(-1e30)
"""The maximum before any key, if a query may have all keys of a block masked: -inf - -inf would not be a number."""

PRECISION = tl.constexpr("tf32x3")
"""The precision of float32 products: tensor cores compute each as three TF32 products, with an error of 2^-22.
16-bit products are exact either way. "ieee" uses no tensor cores, and spills with heads of 128."""

MIN_SCALE = tl.constexpr(2.0**-100)
"""Values with smaller scales count as if they had this one: their sum of weights stays below the largest float32."""


def scales_of(cache: PagedKV) -> tuple[Tensor, Tensor]:
    """Returns the scales of K and V, or tensors that no kernel reads if the cache has none."""
    if cache.key_scales is None or cache.value_scales is None:
        return cache.keys, cache.values
    assert cache.page_size % 2 == 0, "a pair of scales would not be aligned"
    return cache.key_scales, cache.value_scales


def cap_log2_of(options: AttentionOptions) -> float:
    """Returns the cap of scores to base 2, or a number that no kernel reads if there is none."""
    return 1.0 if options.softcap is None else options.softcap * LOG2_E


@triton.jit
def load_block(
    keys,
    values,
    key_scales,
    value_scales,
    page_table,
    first_key,
    key_N,
    end_key,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    WIDE: tl.constexpr,
    REACHES_END: tl.constexpr,
    IN_WORDS: tl.constexpr = False,
):
    """Returns K as [D, N], V as [N, D] and their scales [N] (1 unless the cache HAS_SCALES) of one head.

    They are 0 before `first_key`, if given, and from `end_key` on; only a block that REACHES_END has such keys. Codes
    become numbers of the type WIDE; IN_WORDS, K stays codes, and V is loaded 4 codes at a time. Pages are widened
    before they are multiplied: a cache may have more than 2^31 elements.
    """
    key_scale_N, value_scale_N = 1.0, 1.0
    dim_D = tl.arange(0, BLOCK_D)
    is_dim_D = dim_D < HEAD_DIM
    NUM_CODES: tl.constexpr = tl.constexpr(4 if IN_WORDS else 1)
    value_D = tl.arange(0, BLOCK_D // NUM_CODES)
    if IN_WORDS:
        values = values.to(tl.pointer_type(tl.int32))
    is_key_N = key_N < end_key
    if first_key is not None:
        is_key_N &= key_N >= first_key
    if HAS_SCALES:
        # Its division takes fewer instructions, of which codes have many for their bytes.
        key_N = key_N.to(tl.uint32)
    key_mask, value_mask = is_dim_D[:, None], (value_D < HEAD_DIM // NUM_CODES)[None, :]
    if REACHES_END:
        page_N = tl.load(page_table + key_N // PAGE_SIZE, mask=is_key_N, other=0)
        key_mask, value_mask = is_key_N[None, :] & key_mask, is_key_N[:, None] & value_mask
    else:
        page_N = tl.load(page_table + key_N // PAGE_SIZE)
    slot_N = page_N.to(tl.int64) * PAGE_SIZE + key_N % PAGE_SIZE
    token_N = slot_N * (NUM_KV_HEADS * HEAD_DIM)
    key_DN = tl.load(keys + token_N[None, :] + dim_D[:, None], mask=key_mask, other=0.0)
    value_ND = tl.load(values + (token_N // NUM_CODES)[:, None] + value_D[None, :], mask=value_mask, other=0.0)
    if IN_WORDS:
        value_ND = codes_of(value_ND, key_DN.dtype).to(WIDE)
    elif HAS_SCALES:
        key_DN, value_ND = key_DN.to(WIDE), value_ND.to(WIDE)
    if HAS_SCALES:
        key_scale_N = load_scales(key_scales, slot_N * NUM_KV_HEADS + kv_head)
        value_scale_N = load_scales(value_scales, slot_N * NUM_KV_HEADS + kv_head)
        if REACHES_END:
            value_scale_N = tl.where(is_key_N, value_scale_N, 1.0)
    return key_DN, value_ND, key_scale_N, value_scale_N


@triton.jit
def codes_of(word_NW, CODE: tl.constexpr):
    """Returns the four codes of each word, the lowest first, [N, 4 W]."""
    even = tl.join(word_NW.to(tl.int8), (word_NW >> 16).to(tl.int8))
    odd = tl.join((word_NW >> 8).to(tl.int8), (word_NW >> 24).to(tl.int8))
    return tl.reshape(tl.join(even, odd), [word_NW.shape[0], 4 * word_NW.shape[1]]).to(CODE, bitcast=True)


@triton.jit
def load_scales(scales, place_N):
    """Returns the scales at these places as float32 [N].

    Each is loaded with its neighbour: only 4 bytes or more can be copied while the program computes (`cp.async`).
    """
    pair_N = tl.load(scales.to(tl.pointer_type(tl.int32)) + (place_N >> 1))
    return ((pair_N >> ((place_N & 1).to(tl.int32) * 16)) << 16).to(tl.float32, bitcast=True)


@triton.jit
def widen_query(query_MD, scale_log2, HAS_SCALES: tl.constexpr):
    """Returns the query in the type of widened codes, and the scale of its products with them: a number or [M, 1].

    One instruction converts two codes to float16, which holds them exactly. It holds the query too, once that is
    divided by a power of 2.
    """
    scale = scale_log2
    if HAS_SCALES and query_MD.dtype != tl.float32:
        query_MD = query_MD.to(tl.float32)
        largest_M1 = tl.max(tl.abs(query_MD), 1, keep_dims=True)
        unit_M1 = (largest_M1.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        unit_M1 = tl.where(unit_M1 == 0, 1.0, unit_M1)
        query_MD, scale = (query_MD / unit_M1).to(tl.float16), unit_M1 * scale_log2
    return query_MD, scale


@triton.jit
def score(query_MD, key_DN, key_scale_N, scale, HAS_SCALES: tl.constexpr):
    """Returns the scores of a block, times `scale`."""
    score_MN = tl.dot(query_MD, key_DN, input_precision=PRECISION) * scale
    if HAS_SCALES:
        score_MN *= key_scale_N[None, :]
    return score_MN


@triton.jit
def cap_scores(score_MN, cap_log2):
    """Returns cap * tanh(score / cap), with tanh x = 1 - 2 / (1 + e^2x)."""
    return cap_log2 * (1 - 2 / (1 + tl.exp2(score_MN * (_TWO_LOG2_E / cap_log2))))


@triton.jit
def fold(score_MN, value_ND, value_scale_N, max_M, sum_M, acc_MD, HAS_SCALES: tl.constexpr):
    """Returns maximum, sum and output after one more block. Masked scores are -inf; no query has all of them masked."""
    if HAS_SCALES:
        # Weights are multiplied by scales here, before the maximum is subtracted, so that float16 holds the products.
        value_scale_N = tl.where(value_scale_N < MIN_SCALE, MIN_SCALE, value_scale_N)
        score_MN += tl.log2(value_scale_N)[None, :]
    new_max_M = tl.maximum(max_M, tl.max(score_MN, 1))
    shrink_M = tl.exp2(max_M - new_max_M)
    weight_MN = tl.exp2(score_MN - new_max_M[:, None])
    sum_M = sum_M * shrink_M + tl.sum(weight_MN * (1 / value_scale_N)[None, :] if HAS_SCALES else weight_MN, 1)
    acc_MD = acc_MD * shrink_M[:, None]
    acc_MD = tl.dot(weight_MN.to(value_ND.dtype), value_ND, acc_MD, input_precision=PRECISION)
    return new_max_M, sum_M, acc_MD
