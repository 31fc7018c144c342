"""Root-mean-square normalization of each query and key head, over the head dimension.

Shape legend: T tokens, H query heads, G key/value heads, A = H + 2 G, D head dimension. Idea: Henry et al., "Query-Key
Normalization for Transformers", 2020; here with the norm of `rms_norm`.
"""

from dataclasses import dataclass

from torch import Tensor

from kernels.cpu.library import find_kernel
from kernels.rms_norm import rms_norm_reference


@dataclass(frozen=True)
class HeadNorms:
    """The norms of all query heads and of all key heads; each weight is [D], of the heads' dtype."""

    query_weight: Tensor
    key_weight: Tensor
    eps: float


def qk_norm(heads_TAD: Tensor, query_weight_D: Tensor, key_weight_D: Tensor, num_heads: int, eps: float) -> None:
    """Replaces each of the H = `num_heads` query heads and G key heads in `heads_TAD` by its norm, as `rms_norm` does.

    The value heads, which come last, stay as they are.
    """
    num_tokens, num_all_heads, head_dim = heads_TAD.shape
    assert 0 < num_heads < num_all_heads
    assert (num_all_heads - num_heads) % 2 == 0
    assert query_weight_D.shape == key_weight_D.shape == (head_dim,)
    assert query_weight_D.dtype == key_weight_D.dtype == heads_TAD.dtype
    kernel = find_kernel("qk_norm", heads_TAD)
    if kernel is None:
        qk_norm_reference(heads_TAD, query_weight_D, key_weight_D, num_heads, eps)
        return
    assert heads_TAD.is_contiguous()
    kernel(
        heads_TAD.data_ptr(),
        query_weight_D.data_ptr(),
        key_weight_D.data_ptr(),
        num_tokens,
        num_heads,
        (num_all_heads - num_heads) // 2,
        head_dim,
        eps,
    )


def qk_norm_reference(
    heads_TAD: Tensor, query_weight_D: Tensor, key_weight_D: Tensor, num_heads: int, eps: float
) -> None:
    num_kv_heads = (heads_TAD.shape[1] - num_heads) // 2
    query_THD, key_TGD, _ = heads_TAD.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    query_THD.copy_(rms_norm_reference(query_THD, query_weight_D, eps, None))
    key_TGD.copy_(rms_norm_reference(key_TGD, key_weight_D, eps, None))
