"""Causal attention of rows with many new tokens each, over their earlier and their new tokens.

Shape legend: T tokens of all rows, one row after another, R rows, H query heads, G key/value heads, D head dimension,
P pages a row (padded), N new tokens of a row, L keys of a row.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.dispatch import call
from kernels.operations.quantized_kv import gather_heads


def paged_prefill(query_THD: Tensor, cache: PagedKV, rows: PrefillRows, scale: float, out_THD: Tensor) -> None:
    """Sets `out_THD` to the attention of each token over the tokens of its row up to its own position.

    The K and V of all tokens have been stored; unused slots are not read and may be uninitialised. The softmax is
    computed in float32. Outputs beyond the rows' tokens (the padding of a captured step) are undefined. Without
    `rows.tiles` the Triton kernel waits for the device.
    """
    assert out_THD.shape == query_THD.shape
    assert out_THD.dtype == query_THD.dtype
    assert cache.holds(query_THD.dtype)
    assert cache.head_dim == query_THD.shape[2]
    assert query_THD.shape[1] % cache.num_heads == 0
    num_rows = rows.page_tables.shape[0]
    assert rows.query_lens.shape == rows.context_lens.shape == (num_rows,)
    assert rows.page_tables.dtype == rows.query_lens.dtype == rows.context_lens.dtype == torch.int32
    call("paged_prefill", query_THD, paged_prefill_reference, query_THD, cache, rows, scale, out_THD)


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
