"""Root-mean-square normalization of each query and key head, over the head dimension: a part of `rotate_store`.

Shape legend: T tokens, H query heads, G key/value heads, A = H + 2 G, D head dimension. Idea: Henry et al., "Query-Key
Normalization for Transformers", 2020; here with the norm of `rms_norm`.
"""

from torch import Tensor

from kernels.operations.rms_norm import rms_norm_reference


def qk_norm_reference(
    heads_TAD: Tensor, query_weight_D: Tensor, key_weight_D: Tensor, num_heads: int, eps: float
) -> None:
    """Normalizes each of the H = `num_heads` query heads and G key heads in `heads_TAD`, as `rms_norm` does.

    The value heads, which come last, stay as they are.
    """
    num_kv_heads = (heads_TAD.shape[1] - num_heads) // 2
    query_THD, key_TGD, _ = heads_TAD.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    query_THD.copy_(rms_norm_reference(query_THD, query_weight_D, eps, None))
    key_TGD.copy_(rms_norm_reference(key_TGD, key_weight_D, eps, None))
