"""Rows for attention in both directions, with what dense attention in float64 computes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.rows import WholeRows
from kernels.operations.encoder_attention import encoder_attention, encoder_attention_reference

NUM_SINGLE, LENS = 2, (2, 16, 63, 64, 65, 130)


@dataclass(frozen=True)
class EncoderShape:
    """`reach`: biases by distance up to it, 0 for none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    reach: int = 0


SHAPES = [
    EncoderShape(2, 2, 32),
    EncoderShape(4, 2, 16),
    EncoderShape(3, 1, 40, window=9),
    EncoderShape(1, 1, 64, window=65),
    EncoderShape(2, 2, 32, reach=8),
    EncoderShape(2, 2, 32, window=100, reach=70),
]


def make_heads(shape: EncoderShape, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor | None]:
    """Returns queries, keys and values of all tokens side by side, and the biases."""
    generator = torch.Generator().manual_seed(shape.head_dim)
    num_heads = shape.num_heads + 2 * shape.num_kv_heads
    heads = torch.randn(NUM_SINGLE + sum(LENS), num_heads, shape.head_dim, generator=generator)
    bias = torch.randn(shape.num_heads, 2 * shape.reach + 1, generator=generator).to(device) if shape.reach else None
    return heads.to(dtype).to(device), bias


def split(heads: Tensor, shape: EncoderShape) -> tuple[Tensor, ...]:
    return heads.tensor_split((shape.num_heads, shape.num_heads + shape.num_kv_heads), 1)


def run(heads: Tensor, bias: Tensor | None, shape: EncoderShape, num_single: int, lens: tuple[int, ...]) -> Tensor:
    query, key, value = split(heads, shape)
    out = torch.full(query.shape, float("nan"), dtype=heads.dtype, device=heads.device)
    rows = WholeRows(num_single, torch.tensor(lens, dtype=torch.int32, device=heads.device))
    encoder_attention(query, key, value, rows, AttentionOptions(shape.head_dim**-0.5, shape.window, biases=bias), out)
    return out


def expected(heads: Tensor, bias: Tensor | None, shape: EncoderShape) -> Tensor:
    parts = split(heads.float(), shape)
    out, rows = torch.empty_like(parts[0]), WholeRows(NUM_SINGLE, torch.tensor(LENS, dtype=torch.int32))
    options = AttentionOptions(shape.head_dim**-0.5, shape.window, biases=bias)
    encoder_attention_reference(*parts, rows, options, out)
    return out.to(heads.dtype)
