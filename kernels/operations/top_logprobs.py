"""Logprobs of one given token per row and of the likeliest tokens.

Shape legend: N rows, V vocabulary, K likeliest tokens, B blocks of a vocabulary, C candidates.
"""

import torch
from torch import Tensor

from kernels.dispatch import call

BLOCK_TOKENS = 64


def top_logprobs(logits_NV: Tensor, ids_N: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the logprobs of `ids_N` (float32 [N]), the ids of the K likeliest (int32 [N, K]) and their logprobs.

    The distribution is the softmax of the logits in float32. The likeliest come first, the smaller id of
    equal ones. An id of -1 has the logprob NaN. So has every id of a row with a NaN or +inf; its likeliest tokens are
    undefined.
    """
    assert logits_NV.dim() == 2
    assert len(logits_NV) == len(ids_N)
    assert 0 <= num_top <= logits_NV.shape[1]
    return call("top_logprobs", logits_NV, top_logprobs_reference, logits_NV, ids_N, num_top)


def top_logprobs_reference(logits_NV: Tensor, ids_N: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    logprobs_NV = torch.log_softmax(logits_NV, -1, dtype=torch.float32)
    chosen_N = logprobs_NV.gather(1, ids_N.long().clamp(min=0)[:, None])[:, 0]
    top_ids_NK = _find_top(logprobs_NV, num_top)
    top_logprobs_NK = logprobs_NV.gather(1, top_ids_NK)
    return chosen_N.where(ids_N >= 0, float("nan")), top_ids_NK.to(torch.int32), top_logprobs_NK


def _find_top(values_NV: Tensor, num_top: int) -> Tensor:
    """Returns the ids (int64 [N, K]) of the largest values; of equal values, the smaller id comes first.

    They lie in the K blocks whose largest values come first in the same order: a token of another block comes after a
    token in each of these. So only K blocks are sorted, not a vocabulary.
    """
    if num_top == 1:
        return values_NV.max(dim=-1, keepdim=True).indices
    vocab_size = values_NV.shape[1]
    largest_NB = _block_maxima(values_NV)
    blocks_NB = largest_NB.sort(dim=-1, descending=True, stable=True).indices[:, :num_top].sort(dim=-1).values
    offsets = torch.arange(BLOCK_TOKENS, device=values_NV.device)
    ids_NC = (blocks_NB[:, :, None] * BLOCK_TOKENS + offsets).flatten(1)
    candidates_NC = values_NV.gather(1, ids_NC.clamp(max=vocab_size - 1))
    candidates_NC.masked_fill_(ids_NC >= vocab_size, float("-inf"))
    best_NK = candidates_NC.sort(dim=-1, descending=True, stable=True).indices[:, :num_top]
    return ids_NC.gather(1, best_NK)


def _block_maxima(values_NV: Tensor) -> Tensor:
    """Returns the largest value of each block; the last one may be short."""
    num_blocks = values_NV.shape[1] // BLOCK_TOKENS
    num_even = num_blocks * BLOCK_TOKENS
    largest = [values_NV[:, :num_even].unflatten(1, (num_blocks, BLOCK_TOKENS)).amax(-1)]
    if num_even < values_NV.shape[1]:
        largest.append(values_NV[:, num_even:].amax(-1, keepdim=True))
    return torch.cat(largest, dim=1)
