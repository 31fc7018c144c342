"""Causal attention of rows with many new tokens each, over what the cache already holds and the new tokens.

Shape legend: T tokens of all rows, one row after another, R rows, H query heads, G key/value heads, D head dimension,
P pages a row (padded), N new tokens of a row, L keys of a row.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.paged_kv import PagedKV, find_attention_kernel


def paged_prefill(
    query_THD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    query_lens_R: Tensor,
    context_lens_R: Tensor,
    scale: float,
    out_THD: Tensor,
) -> None:
    """`out_THD` holds the attention of each token over the tokens of its row at its position and before.

    Row r has `query_lens_R[r]` (at least 1) new tokens after `context_lens_R[r]` earlier ones; the K and V of all have
    been stored. `page_tables_RP` (int32) is padded with -1; other slots are not read, they may hold anything. The
    softmax is computed in float32.
    """
    assert out_THD.shape == query_THD.shape
    assert out_THD.dtype == query_THD.dtype == cache.keys.dtype
    assert cache.head_dim == query_THD.shape[2]
    assert query_THD.shape[1] % cache.num_heads == 0
    num_rows = page_tables_RP.shape[0]
    assert query_lens_R.shape == context_lens_R.shape == (num_rows,)
    assert page_tables_RP.dtype == query_lens_R.dtype == context_lens_R.dtype == torch.int32
    kernel = find_attention_kernel("paged_prefill", query_THD, cache, out_THD)
    if kernel is None:
        paged_prefill_reference(query_THD, cache, page_tables_RP, query_lens_R, context_lens_R, scale, out_THD)
        return
    kernel(
        query_THD.data_ptr(),
        query_THD.stride(0),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        page_tables_RP.data_ptr(),
        page_tables_RP.stride(0),
        query_lens_R.data_ptr(),
        context_lens_R.data_ptr(),
        out_THD.data_ptr(),
        num_rows,
        cache.num_heads,
        query_THD.shape[1] // cache.num_heads,
        cache.head_dim,
        cache.page_size,
        scale,
    )


def paged_prefill_reference(
    query_THD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    query_lens_R: Tensor,
    context_lens_R: Tensor,
    scale: float,
    out_THD: Tensor,
) -> None:
    first = 0
    rows = zip(query_lens_R.tolist(), context_lens_R.tolist(), strict=True)
    for row, (num_new, num_before) in enumerate(rows):
        positions_L = torch.arange(num_before + num_new, dtype=torch.int32, device=query_THD.device)
        slots_L = cache.find_slots(page_tables_RP[row : row + 1], positions_L[None])[0]
        tokens = slice(first, first + num_new)
        out_1HND = functional.scaled_dot_product_attention(
            query_THD[tokens].transpose(0, 1)[None],
            cache.keys.index_select(0, slots_L).transpose(0, 1)[None],
            cache.values.index_select(0, slots_L).transpose(0, 1)[None],
            attn_mask=None if num_before == 0 else positions_L[num_before:, None] >= positions_L,
            is_causal=num_before == 0,
            scale=scale,
            enable_gqa=True,
        )
        out_THD[tokens] = out_1HND[0].transpose(0, 1)
        first += num_new
