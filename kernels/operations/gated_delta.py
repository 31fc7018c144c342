"""The gated delta rule: a matrix for each head that forgets, and corrects what it returns for a key.

Shape legend: T tokens, H value heads, G key heads, D key size, V value size, X = 2 G D + H V, B = 2 H, N = H V,
S slots.
Formula: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024.
"""

import math

import torch
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.dispatch import call

NORM_EPS = 1e-6


def gated_delta(
    qkv_TX: Tensor,
    gates_TB: Tensor,
    decay: StateDecay,
    matrix_SHDV: Tensor,
    rows: StateRows,
    *,
    has_tiled_heads: bool = False,
    out_TN: Tensor | None = None,
) -> Tensor:
    """Returns what each head's matrix holds for its query after the token's update, as [T, N].

    `qkv_TX` holds all queries, all keys and all values of a token; value head h has key head h // (H / G), or h % G
    with `has_tiled_heads`, as in GGUF files. `gates_TB` holds a value b and then a value t for each value head. Queries
    and keys are divided by their length, queries also by sqrt(D). The matrix decays by `decay` and t; then
    matrix += k (sigmoid(b) * (v - k matrix))ᵀ. The matrices and all computation are float32. Rows of `qkv_TX` and
    `gates_TB` may lie apart. Outputs beyond the rows' tokens (the padding of a captured step) are undefined. The result
    may be written to `out_TN`.
    """
    num_tokens, (num_heads, key_size, value_size) = len(qkv_TX), matrix_SHDV.shape[1:]
    num_key_heads, rest = divmod(qkv_TX.shape[1] - num_heads * value_size, 2 * key_size)
    assert rest == 0
    assert num_key_heads > 0
    assert num_heads % num_key_heads == 0
    assert gates_TB.shape == (num_tokens, 2 * num_heads)
    assert qkv_TX.dtype == gates_TB.dtype
    assert qkv_TX.stride(1) == gates_TB.stride(1) == 1
    decay.check(num_heads)
    assert decay.shortest == 0.0
    assert decay.longest == math.inf
    assert matrix_SHDV.dtype == torch.float32
    assert matrix_SHDV.is_contiguous()
    rows.check(num_tokens)
    out_TN = qkv_TX.new_empty(num_tokens, num_heads * value_size) if out_TN is None else out_TN
    assert out_TN.shape == (num_tokens, num_heads * value_size)
    assert out_TN.dtype == qkv_TX.dtype
    arguments = qkv_TX, gates_TB, decay, matrix_SHDV, rows, has_tiled_heads, out_TN
    call("gated_delta", qkv_TX, gated_delta_reference, *arguments)
    return out_TN


def gated_delta_reference(
    qkv_TX: Tensor,
    gates_TB: Tensor,
    decay: StateDecay,
    matrix_SHDV: Tensor,
    rows: StateRows,
    has_tiled_heads: bool,
    out_TN: Tensor,
) -> None:
    num_heads, key_size, value_size = matrix_SHDV.shape[1:]
    heads_TX, value_TN = qkv_TX.float().split((qkv_TX.shape[1] - num_heads * value_size, num_heads * value_size), 1)
    heads_TGD = heads_TX.unflatten(1, (-1, key_size))
    heads_TGD = heads_TGD * (heads_TGD.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()
    num_key_heads = heads_TGD.shape[1] // 2
    heads_H = torch.arange(num_heads, device=qkv_TX.device)
    key_heads_H = heads_H % num_key_heads if has_tiled_heads else heads_H // (num_heads // num_key_heads)
    query_THD, key_THD = (part[:, key_heads_H] for part in heads_TGD.chunk(2, 1))
    query_THD = query_THD * key_size**-0.5
    value_THV = value_TN.unflatten(1, (num_heads, value_size))
    beta_TH, time_TH = gates_TB.float().chunk(2, 1)
    beta_TH, kept_TH = beta_TH.sigmoid(), (decay.rates * decay.time_steps(time_TH)).exp()

    def advance(matrix_HDV: Tensor, token: int) -> Tensor:
        matrix_HDV = matrix_HDV * kept_TH[token, :, None, None]
        held_HV = torch.einsum("hdv,hd->hv", matrix_HDV, key_THD[token])
        update_HV = beta_TH[token, :, None] * (value_THV[token] - held_HV)
        matrix_HDV = matrix_HDV + key_THD[token, :, :, None] * update_HV[:, None]
        out_TN[token] = torch.einsum("hdv,hd->hv", matrix_HDV, query_THD[token]).flatten()
        return matrix_HDV

    rows.scan(matrix_SHDV, advance)
