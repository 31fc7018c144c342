"""Rotates queries and keys by their positions and writes K and V of a step's tokens into the paged cache.

Shape legend: T tokens, H query heads, G key/value heads, A = H + 2 G, D head dimension.
"""

import torch
from torch import Tensor

from kernels.arguments.paged_kv import InPlace, PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.dispatch import call
from kernels.operations.qk_norm import qk_norm_reference
from kernels.operations.rms_norm import rms_norm_reference
from kernels.operations.rope import rope
from kernels.operations.store_kv import store_kv


def rotate_store(
    heads_TAD: Tensor,
    cache: PagedKV | InPlace | None,
    tables: RopeTables | None,
    positions_T: Tensor,
    slots_T: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Stores the K and V of token t in slot `slots_T[t]` (int64, no slot twice; -1 skips the token).

    `heads_TAD` holds query, key and value heads, or without `cache` only query heads; returns the query heads, a view
    of it. With `norms`, each head is normalized, as `rms_norm` does; then, with `tables`, queries and keys are rotated
    by the angles of `positions_T` (int32). A cache of codes gets the codes of these values (`quantized_kv.py`). The
    keys and values in `heads_TAD` are undefined afterwards, unless they stay `InPlace`.
    """
    num_tokens, num_all_heads, head_dim = heads_TAD.shape
    assert cache is None or num_all_heads > 2 * cache.num_heads
    assert not isinstance(cache, PagedKV) or (head_dim == cache.head_dim and cache.holds(heads_TAD.dtype))
    assert slots_T.dtype == torch.int64
    assert positions_T.dtype == torch.int32
    assert slots_T.shape == positions_T.shape == (num_tokens,)
    weights = () if norms is None else [weight for weight in norms.weights if weight is not None]
    assert all(weight.shape == (head_dim,) and weight.dtype == heads_TAD.dtype for weight in weights)
    arguments = heads_TAD, cache, tables, positions_T, slots_T, norms
    return call("rotate_store", heads_TAD, rotate_store_reference, *arguments)


def rotate_store_reference(
    heads_TAD: Tensor,
    cache: PagedKV | InPlace | None,
    tables: RopeTables | None,
    positions_T: Tensor,
    slots_T: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    num_kv_heads = 0 if cache is None else cache.num_heads
    num_heads = heads_TAD.shape[1] - 2 * num_kv_heads
    query_THD, key_TGD, value_TGD = heads_TAD.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        qk_norm_reference(heads_TAD, norms.query_weight, norms.key_weight, num_heads, norms.eps)
        if norms.value_weight is not None:
            value_TGD.copy_(rms_norm_reference(value_TGD, norms.value_weight, norms.eps, None))
    if tables is not None:
        rope(query_THD, key_TGD, tables, positions_T)
    if isinstance(cache, PagedKV):
        store_kv(key_TGD, value_TGD, cache, slots_T)
    return query_THD
