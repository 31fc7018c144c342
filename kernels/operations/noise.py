"""Stateless sampling noise: a function of (seed, position, token) and of nothing else.

Shape legend: S rows, V vocabulary.
A row's 64-bit key is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", 2014, with Stafford's variant 13) over the seed and then the position. Each token is hashed with one half
of the key and then with the other by `lowbias32` (Wellons, "Prospecting for Hash Functions", 2018), nested as in
Jarzynski and Olano, "Hash Functions for GPU Rendering", 2020. All of it is wrapping integer arithmetic, so a row's
noise is the same alone and in any batch, on any device; only the logarithms may differ between devices in the last bit.
"""

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_A = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_B = 0x94D049BB133111EB - (1 << 64)
LOWBIAS_A = 0x7FEB352D
LOWBIAS_B = 0x846CA68B - (1 << 32)
LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def exponential_noise(seeds_S: Tensor, positions_S: Tensor, vocab_size: int) -> Tensor:
    """Returns [S, V] float32 draws of the exponential distribution, all positive and finite.

    31 random bits give the probability fine steps near 0, where the winning draws are.
    """
    assert seeds_S.dtype == positions_S.dtype == torch.int64
    assert seeds_S.shape == positions_S.shape
    tokens_V = torch.arange(vocab_size, dtype=torch.int32, device=seeds_S.device)
    uniform_SV = _uniform(seeds_S, positions_S, tokens_V)
    return uniform_SV.clamp_(max=LARGEST_BELOW_ONE).neg_().log1p_().neg_()


def row_noise(seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """Returns float32 [S], uniform in (0, 1]: for a choice per row, independent of the noise of its tokens."""
    no_token = torch.full((1,), -1, dtype=torch.int32, device=seeds_S.device)
    return _uniform(seeds_S, positions_S, no_token)[:, 0]


def _uniform(seeds_S: Tensor, positions_S: Tensor, tokens_V: Tensor) -> Tensor:
    hash_SV = _hash_tokens(_mix64(_mix64(seeds_S) + positions_S), tokens_V)
    return hash_SV.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31)


def _hash_tokens(keys_S: Tensor, tokens_V: Tensor) -> Tensor:
    low_S, high_S = keys_S.to(torch.int32), (keys_S >> 32).to(torch.int32)
    hash_SV = _lowbias32_(tokens_V ^ low_S[:, None])
    return _lowbias32_(hash_SV.bitwise_xor_(high_S[:, None]))


def _lowbias32_(x: Tensor) -> Tensor:
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(LOWBIAS_A)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(LOWBIAS_B)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def _mix64(x: Tensor) -> Tensor:
    x = x + GOLDEN_GAMMA
    x = (x ^ _shift_right(x, 30)) * MIX_A
    x = (x ^ _shift_right(x, 27)) * MIX_B
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, num_bits: int) -> Tensor:
    """A logical shift of int64, which torch shifts arithmetically."""
    return (x >> num_bits) & ((1 << (64 - num_bits)) - 1)
