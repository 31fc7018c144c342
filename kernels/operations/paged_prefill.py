"""Causal attention of rows with many new tokens each, over what the cache already holds and the new tokens.

Shape legend: T tokens of all rows, one row after another, R rows, H query heads, G key/value heads, D head dimension,
P pages a row (padded), N new tokens of a row, L keys of a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.gpu.triton_kernels import find_triton_kernel
from kernels.operations.paged_kv import PagedKV, find_attention_kernel
from kernels.operations.quantized_kv import gather_heads


@dataclass(frozen=True)
class PrefillRows:
    """The rows of a step with many new tokens each, all columns int32."""

    page_tables: Tensor
    """[R, P], padded with -1."""
    query_lens: Tensor
    """[R]: new tokens; 0: the row is the padding of a captured step."""
    context_lens: Tensor
    """[R]: earlier tokens."""
    tiles: Tensor | None = None
    """[N, 4]: the tiles that `kernels.plans.prefill_tiles` planned. With them the Triton kernel
    runs without waiting for the device; other kernels do not need them."""


def paged_prefill(query_THD: Tensor, cache: PagedKV, rows: PrefillRows, scale: float, out_THD: Tensor) -> None:
    """`out_THD` holds the attention of each token over the tokens of its row at its position and before.

    The K and V of all tokens have been stored; slots of none are not read and may be uninitialised. The softmax is
    computed in float32. What `out_THD` holds of tokens beyond the rows' (the padding of a captured step) is undefined.
    """
    assert out_THD.shape == query_THD.shape
    assert out_THD.dtype == query_THD.dtype
    assert cache.holds(query_THD.dtype)
    assert cache.head_dim == query_THD.shape[2]
    assert query_THD.shape[1] % cache.num_heads == 0
    num_rows = rows.page_tables.shape[0]
    assert rows.query_lens.shape == rows.context_lens.shape == (num_rows,)
    assert rows.page_tables.dtype == rows.query_lens.dtype == rows.context_lens.dtype == torch.int32
    triton_kernel = find_triton_kernel("paged_prefill", query_THD)
    if triton_kernel is not None:
        triton_kernel(query_THD, cache, rows, scale, out_THD)
        return
    kernel = find_attention_kernel("paged_prefill", query_THD, cache, out_THD)
    if kernel is None:
        paged_prefill_reference(query_THD, cache, rows, scale, out_THD)
        return
    kernel(
        query_THD.data_ptr(),
        query_THD.stride(0),
        *cache.addresses,
        rows.page_tables.data_ptr(),
        rows.page_tables.stride(0),
        rows.query_lens.data_ptr(),
        rows.context_lens.data_ptr(),
        out_THD.data_ptr(),
        num_rows,
        cache.num_heads,
        query_THD.shape[1] // cache.num_heads,
        cache.head_dim,
        cache.page_size,
        scale,
    )


def paged_prefill_reference(
    query_THD: Tensor, cache: PagedKV, rows: PrefillRows, scale: float, out_THD: Tensor
) -> None:
    first = 0
    lens = zip(rows.query_lens.tolist(), rows.context_lens.tolist(), strict=True)
    for row, (num_new, num_before) in enumerate(lens):
        if num_new == 0:
            continue
        positions_L = torch.arange(num_before + num_new, dtype=torch.int32, device=query_THD.device)
        slots_L = cache.find_slots(rows.page_tables[row : row + 1], positions_L[None])[0]
        tokens = slice(first, first + num_new)
        key_LGD = gather_heads(cache.keys, cache.key_scales, slots_L, query_THD.dtype)
        value_LGD = gather_heads(cache.values, cache.value_scales, slots_L, query_THD.dtype)
        out_1HND = functional.scaled_dot_product_attention(
            query_THD[tokens].transpose(0, 1)[None],
            key_LGD.transpose(0, 1)[None],
            value_LGD.transpose(0, 1)[None],
            attn_mask=None if num_before == 0 else positions_L[num_before:, None] >= positions_L,
            is_causal=num_before == 0,
            scale=scale,
            enable_gqa=True,
        )
        out_THD[tokens] = out_1HND[0].transpose(0, 1)
        first += num_new
