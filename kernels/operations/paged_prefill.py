"""Causal attention of rows with many new tokens each, over their earlier and their new tokens.

Only tokens of one span, such as an image, may attend to later ones.

Shape legend: T tokens of all rows, one row after another, R rows, H query heads, G key/value heads, D head dimension,
P pages a row (padded), N new tokens of a row, L keys of a row, from its first token's window on.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.dispatch import call
from kernels.operations.paged_decode import cap_scores, softmax_with_sinks
from kernels.operations.quantized_kv import gather_heads


def paged_prefill(
    query_THD: Tensor, cache: PagedKV, rows: PrefillRows, options: AttentionOptions, out_THD: Tensor
) -> None:
    """Sets `out_THD` to the attention of each token over its row's tokens up to its own position, as `options` say, or
    up to `rows.last_keys`.

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
    assert rows.last_keys is None or (rows.last_keys.dtype == torch.int32 and len(rows.last_keys) == len(query_THD))
    call("paged_prefill", query_THD, paged_prefill_reference, query_THD, cache, rows, options, out_THD)


def paged_prefill_reference(
    query_THD: Tensor, cache: PagedKV, rows: PrefillRows, options: AttentionOptions, out_THD: Tensor
) -> None:
    first = 0
    lens = zip(rows.query_lens.tolist(), rows.context_lens.tolist(), strict=True)
    for row, (num_new, num_before) in enumerate(lens):
        if num_new == 0:
            continue
        begin = 0 if options.window is None else max(0, num_before + 1 - options.window)
        tokens = slice(first, first + num_new)
        own_N = torch.arange(num_before, num_before + num_new, dtype=torch.int32, device=query_THD.device)
        last_N = own_N if rows.last_keys is None else rows.last_keys[tokens]
        positions_L = torch.arange(begin, int(last_N[-1]) + 1, dtype=torch.int32, device=query_THD.device)
        is_causal = rows.last_keys is None and num_new == len(positions_L) and options.window is None
        mask_NL = None
        if not is_causal:
            distances_NL = own_N[:, None] - positions_L
            mask_NL = (positions_L <= last_N[:, None]) & (distances_NL < (options.window or len(positions_L)))
        slots_L = cache.find_slots(rows.page_tables[row : row + 1], positions_L[None])[0]
        key_LGD = gather_heads(cache.keys, cache.key_scales, slots_L, query_THD.dtype)
        value_LGD = gather_heads(cache.values, cache.value_scales, slots_L, query_THD.dtype)
        heads = (part.transpose(0, 1) for part in (query_THD[tokens], key_LGD, value_LGD))
        out_THD[tokens] = _attend(*heads, mask_NL, options).transpose(0, 1)
        first += num_new


def _attend(
    query_HND: Tensor, key_GLD: Tensor, value_GLD: Tensor, mask_NL: Tensor | None, options: AttentionOptions
) -> Tensor:
    """Without a mask token n attends to the first n + 1 keys."""
    num_new = query_HND.shape[1]
    if options.softcap is None and options.sinks is None:
        parts = (query_HND[None], key_GLD[None], value_GLD[None])
        return functional.scaled_dot_product_attention(
            *parts, attn_mask=mask_NL, is_causal=mask_NL is None, scale=options.scale, enable_gqa=True
        )[0]
    key_HLD, value_HLD = (part.repeat_interleave(len(query_HND) // len(part), 0) for part in (key_GLD, value_GLD))
    scores_HNL = (query_HND @ key_HLD.transpose(1, 2)).float().mul_(options.scale)
    cap_scores(scores_HNL, options.softcap)
    is_seen_NL = torch.ones(num_new, num_new, dtype=torch.bool).tril() if mask_NL is None else mask_NL
    scores_HNL.masked_fill_(~is_seen_NL.to(scores_HNL.device), float("-inf"))
    sinks = None if options.sinks is None else options.sinks[:, None, None]
    return softmax_with_sinks(scores_HNL, sinks).to(value_HLD.dtype) @ value_HLD
