"""A block of keys in decode attention whose products take fp8 codes: an item's keys are added to the softmax.

Shape legend: M queries of a program, N keys of a block, D head dimension (padded to a power of two).

Keys and values are the rows of both products, so that a warp group's products (wgmma) read K as it lies in shared
memory: no thread loads or converts a code of it. They take fp8 only with neighbours in the dimension that is summed,
which V has not: V becomes float16. Its codes are loaded as words: as the operand of a product, Triton would load each
by itself.
"""

import triton
import triton.language as tl

from kernels.gpu.key_blocks import MIN_SCALE, cap_scores, load_block, widen_query

_UNITS = tl.constexpr(128.0)
"""The elements of a query that `widen_query` returns are less than 2: times this, codes hold them."""


@triton.jit
def attend_codes(
    query_MD,
    cache,
    first_key,
    end_key,
    kv_head,
    scale_log2,
    cap_log2,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Returns maximum, sum and output of these keys, as `key_blocks.fold` does after the last of them.

    A query is the sum of two codes for each element, which is as exact as bfloat16.
    """
    CODE: tl.constexpr = cache[0].dtype.element_ty
    num_queries: tl.constexpr = query_MD.shape[0]
    query_MD, scale_M1 = widen_query(query_MD, scale_log2, True)
    query_MD = query_MD.to(tl.float32) * _UNITS
    high_MD = query_MD.to(CODE)
    high_DM, low_DM = tl.trans(high_MD), tl.trans((query_MD - high_MD.to(tl.float32)).to(CODE))
    scale_1M = tl.trans(scale_M1 / _UNITS)
    max_M = tl.full([num_queries], float("-inf"), tl.float32)
    sum_NM = tl.zeros([BLOCK_N, num_queries], tl.float32)
    acc_DM = tl.zeros([BLOCK_D, num_queries], tl.float32)
    end_whole = end_key - (end_key - first_key) % BLOCK_N
    for REACHES_END in tl.static_range(2):
        for start in range(end_whole if REACHES_END else first_key, end_key if REACHES_END else end_whole, BLOCK_N):
            key_N = start + tl.arange(0, BLOCK_N)
            key_DN, value_ND, key_scale_N, value_scale_N = load_block(
                *cache,
                None,
                *(key_N, end_key, kv_head),
                *(NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_D, True, tl.float16, REACHES_END, True),
            )
            key_ND = tl.trans(key_DN)
            score_NM = tl.dot(key_ND, low_DM, tl.dot(key_ND, high_DM)) * scale_1M * key_scale_N[:, None]
            if HAS_CAP:
                score_NM = cap_scores(score_NM, cap_log2)
            if REACHES_END:
                score_NM = tl.where((key_N < end_key)[:, None], score_NM, float("-inf"))
            # V's scales, as in `key_blocks.fold`.
            log_N = tl.log2(tl.where(value_scale_N < MIN_SCALE, MIN_SCALE, value_scale_N))
            score_NM += log_N[:, None]
            new_max_M = tl.maximum(max_M, tl.max(score_NM, 0))
            shrink_1M = tl.exp2(max_M - new_max_M)[None, :]
            weight_NM = tl.exp2(score_NM - new_max_M[None, :])
            sum_NM = sum_NM * shrink_1M + weight_NM * tl.exp2(-log_N)[:, None]
            acc_DM = tl.dot(tl.trans(value_ND), weight_NM.to(tl.float16), acc_DM * shrink_1M)
            max_M = new_max_M
    return max_M, tl.sum(sum_NM, 0), tl.trans(acc_DM)
