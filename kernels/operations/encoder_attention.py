"""Attention of whole rows in both directions, over the K and V of the step's own tokens.

Shape legend: T tokens of all rows, one row after another, H query heads, G key/value heads, D head dimension, N tokens
of a row, X distances.
"""

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.rows import WholeRows
from kernels.dispatch import call


def encoder_attention(
    query_THD: Tensor,
    key_TGD: Tensor,
    value_TGD: Tensor,
    rows: WholeRows,
    options: AttentionOptions,
    out_THD: Tensor,
) -> None:
    """Sets `out_THD` to the attention of each token over all tokens of its row, or those nearer than `options.window`.

    Outputs beyond the rows are undefined. A row's outputs are the same bits whatever other rows there are.
    """
    (num_tokens, num_heads, head_dim), num_kv_heads = query_THD.shape, key_TGD.shape[1]
    assert out_THD.shape == query_THD.shape
    assert out_THD.is_contiguous()
    assert key_TGD.shape == value_TGD.shape == (num_tokens, num_kv_heads, head_dim)
    assert query_THD.dtype == key_TGD.dtype == value_TGD.dtype == out_THD.dtype
    assert all(part.stride()[1:] == (head_dim, 1) for part in (query_THD, key_TGD, value_TGD))
    assert num_heads % num_kv_heads == 0
    assert rows.lens.dtype == torch.int32
    assert options.softcap is None
    assert options.sinks is None
    biases = options.biases
    assert biases is None or (biases.dtype == torch.float32 and len(biases) == num_heads == num_kv_heads)
    arguments = query_THD, key_TGD, value_TGD, rows, options, out_THD
    call("encoder_attention", query_THD, encoder_attention_reference, *arguments)


def encoder_attention_reference(
    query_THD: Tensor,
    key_TGD: Tensor,
    value_TGD: Tensor,
    rows: WholeRows,
    options: AttentionOptions,
    out_THD: Tensor,
) -> None:
    num_single, bias_HX = rows.num_single, options.biases
    copies = query_THD.shape[1] // key_TGD.shape[1]
    out_THD[:num_single] = value_TGD[:num_single].repeat_interleave(copies, 1)
    first = num_single
    for num_tokens in rows.lens.tolist():
        row = slice(first, first + num_tokens)
        query_HND, key_HND, value_HND = (part[row].transpose(0, 1) for part in (query_THD, key_TGD, value_TGD))
        key_HND, value_HND = (part.repeat_interleave(copies, 0) for part in (key_HND, value_HND))
        scores_HNN = (query_HND @ key_HND.transpose(1, 2)).float() * options.scale
        position_N = torch.arange(num_tokens, device=query_THD.device)
        distance_NN = position_N - position_N[:, None]
        if bias_HX is not None:
            reach = bias_HX.shape[1] // 2
            scores_HNN += bias_HX[:, distance_NN.clamp(-reach, reach) + reach]
        if options.window is not None:
            scores_HNN.masked_fill_(distance_NN.abs() >= options.window, float("-inf"))
        out_THD[row] = (scores_HNN.softmax(-1).to(value_HND.dtype) @ value_HND).transpose(0, 1)
        first += num_tokens
