"""Attention of rows with one new token each over their pages of the cache.

Shape legend: R rows, H query heads, G key/value heads, Q = H / G query heads a key/value head, D head dimension,
P pages a row (padded), L keys of the longest row, from its window on (rounded up), B = R * G.
"""

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.dispatch import call
from kernels.operations.quantized_kv import gather_heads
from kernels.plans.decode_work import DecodeWork

MAX_GATHERED_ELEMENTS = 1 << 20
"""K elements that the reference gathers at a time: more do not fit the caches, which is several times slower."""

KEYS_STEP = 16
"""Lengths are rounded up to a multiple of it: oneDNN compiles, and keeps, new code for each shape of a product."""


def paged_decode(
    query_RHD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    options: AttentionOptions,
    out_RHD: Tensor,
    work: DecodeWork | None = None,
) -> None:
    """Sets `out_RHD` to softmax(scale * q kᵀ) v of each row over its first `num_keys_R[r]` tokens, as `options` say.

    The row's own token is included and has been stored. `page_tables_RP` (int32) is padded with -1; slots beyond a
    row's keys are not read and may be uninitialised. The softmax is computed in float32. Outputs of a row of 0 keys
    (the padding of a captured step) are undefined. `work` is the planned work of these rows, without which
    the Triton kernel waits for the device.
    """
    num_rows, num_heads, head_dim = query_RHD.shape
    assert out_RHD.shape == query_RHD.shape
    assert out_RHD.dtype == query_RHD.dtype
    assert cache.holds(query_RHD.dtype)
    assert cache.head_dim == head_dim
    assert num_heads % cache.num_heads == 0
    assert page_tables_RP.shape[0] == num_keys_R.shape[0] == num_rows
    assert page_tables_RP.dtype == num_keys_R.dtype == torch.int32
    arguments = query_RHD, cache, page_tables_RP, num_keys_R, options, out_RHD, work
    call("paged_decode", query_RHD, paged_decode_reference, *arguments)


def paged_decode_reference(
    query_RHD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    options: AttentionOptions,
    out_RHD: Tensor,
    _work: DecodeWork | None = None,
) -> None:
    num_rows, num_heads, head_dim = query_RHD.shape
    window = options.window or max(num_keys_R.tolist(), default=1)
    num_seen = [min(num_keys, window) for num_keys in num_keys_R.tolist()]
    elements_a_row = _round_up(max(num_seen, default=1)) * cache.num_heads * head_dim
    rows_at_once = max(1, MAX_GATHERED_ELEMENTS // elements_a_row)
    for first in range(0, num_rows, rows_at_once):
        rows = slice(first, first + rows_at_once)
        longest = _round_up(max(num_seen[rows]))
        num_keys_R1 = num_keys_R[rows, None]
        first_R1 = (num_keys_R1 - window).clamp_(min=0)
        positions_RL = first_R1 + torch.arange(longest, dtype=torch.int32, device=query_RHD.device)
        # Slots beyond a row's keys may hold NaN: its last token is read again in their place, slot 0 for an empty row.
        last_R1 = (num_keys_R1 - 1).clamp_(min=0)
        slots_RL = cache.find_slots(page_tables_RP[rows], torch.minimum(positions_RL, last_R1)).clamp_(min=0)
        key_BLD, value_BLD = _gather_heads(cache, slots_RL, query_RHD.dtype)
        query_BQD = query_RHD[rows].reshape(len(key_BLD), num_heads // cache.num_heads, head_dim)
        scores_BQL = torch.bmm(query_BQD, key_BLD.transpose(1, 2)).float().mul_(options.scale)
        cap_scores(scores_BQL, options.softcap)
        scores_RGQL = scores_BQL.view(len(num_keys_R1), cache.num_heads, -1, longest)
        scores_RGQL.masked_fill_((positions_RL >= num_keys_R1)[:, None, None], float("-inf"))
        sinks = None if options.sinks is None else options.sinks.view(1, cache.num_heads, -1, 1)
        weights_BQL = softmax_with_sinks(scores_RGQL, sinks).view_as(scores_BQL).to(value_BLD.dtype)
        out_RHD[rows] = torch.bmm(weights_BQL, value_BLD).view(-1, num_heads, head_dim)


def cap_scores(scores: Tensor, softcap: float | None) -> None:
    """Caps the scores in place."""
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Returns the weights of the keys, the last axis of `scores`; sinks have its shape except for 1 key and 1 row."""
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1).softmax(-1)[..., :-1]


def _round_up(num_keys: int) -> int:
    return -(-num_keys // KEYS_STEP) * KEYS_STEP


def _gather_heads(cache: PagedKV, slots_RL: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns K and V as [B, L, D]: with the head before the tokens, `bmm` needs no copy."""
    heads_G1 = torch.arange(cache.num_heads, device=slots_RL.device)[:, None]
    index = (slots_RL[:, None] * cache.num_heads + heads_G1).view(-1)

    def gather(values: Tensor, scales: Tensor | None) -> Tensor:
        flat_scales = None if scales is None else scales.view(-1)
        heads = gather_heads(values.view(-1, cache.head_dim), flat_scales, index, dtype)
        return heads.view(-1, slots_RL.shape[1], cache.head_dim)

    return gather(cache.keys, cache.key_scales), gather(cache.values, cache.value_scales)
