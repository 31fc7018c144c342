"""Logprobs of sampled tokens and of prompt tokens, as the model itself gives them, before anything changes its logits.

Shape legend: S rows that sample, N tokens with logprobs, Q scored tokens of prompts, K alternatives, E embedding size,
V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.top_logprobs import top_logprobs
from messages.steps import Batch, LogprobColumns
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.sampling.plan import SamplingPlan, plan_sampling
from scheduler_proc.computing.step.transfer import send_arrays

SLICE_ELEMENTS_CUDA, SLICE_ELEMENTS_CPU = 1 << 25, 1 << 22
"""Logits that are worked on at a time, 128 and 16 MiB in float32: those of a whole prompt might not fit."""


class TokenScores(NamedTuple):
    """Tokens with their logprobs, on whatever device."""

    token_ids: Tensor
    """int32 [N]"""
    logprobs: Tensor
    """float32 [N]"""
    top_ids: Tensor
    """int32 [N, K]"""
    top_logprobs: Tensor
    """float32 [N, K]"""


def score_rows(
    logits_SV: Tensor, tokens_S: Tensor, plan: SamplingPlan, tensors: Sequence[Tensor]
) -> TokenScores | None:
    """Returns the logprobs of the rows that want any, each aligned with its next token; `None` where none does.

    A row without a next token keeps its place, with the logprob NaN. `tensors` are the plan's arrays on the device.
    """
    if plan.num_top < 0:
        return None
    rows_N = plan.name(tensors)["logprob_rows"]
    ids_N = tokens_S.index_select(0, rows_N)
    return _score(lambda part: logits_SV.index_select(0, rows_N[part]), ids_N, plan.num_top, logits_SV.shape[1])


def score_targets(
    hidden_QE: Tensor, decoder: Decoder, plan: SamplingPlan, tensors: Sequence[Tensor]
) -> TokenScores | None:
    """Returns the logprobs of the step's scored tokens from what the head reads of its tokens; `None`: there are none.

    They are NaN where logits are not finite.
    """
    if plan.num_scored_top < 0:
        return None
    ids_Q = plan.name(tensors)["scored_ids"]
    assert len(ids_Q) == len(hidden_QE)
    return _score(lambda part: decoder.logits(hidden_QE[part]), ids_Q, plan.num_scored_top, decoder.config.vocab_size)


def score_sampled(logits_SV: Tensor, tokens_S: Tensor, batch: Batch) -> LogprobColumns | None:
    """Returns what `score_rows` does, when it is known."""
    if not batch.num_logprobs:
        return None
    plan = plan_sampling(batch, logits_SV.shape[1])
    return to_columns(score_rows(logits_SV, tokens_S, plan, send_arrays(plan.arrays, logits_SV.device)))


def score_prompt(hidden_QE: Tensor, decoder: Decoder, batch: Batch) -> LogprobColumns | None:
    """Returns what `score_targets` does, when it is known."""
    if batch.scored is None:
        return None
    plan = plan_sampling(batch, decoder.config.vocab_size)
    return to_columns(score_targets(hidden_QE, decoder, plan, send_arrays(plan.arrays, hidden_QE.device)))


def to_columns(scores: TokenScores | None) -> LogprobColumns | None:
    """Returns them as a message; it waits for scores that are not on the host."""
    if scores is None:
        return None
    return LogprobColumns(
        token_ids=_to_bytes(scores.token_ids),
        logprobs=_to_bytes(scores.logprobs),
        num_top=scores.top_ids.shape[1],
        top_ids=_to_bytes(scores.top_ids),
        top_logprobs=_to_bytes(scores.top_logprobs),
    )


def _score(make_logits: Callable[[slice], Tensor], ids_N: Tensor, num_top: int, vocab_size: int) -> TokenScores:
    """Returns the logprobs of `ids_N` (int32); `make_logits` gives the logits of a slice of them.

    There are never more alternatives than tokens in the vocabulary.
    """
    num_top = min(num_top, vocab_size)
    chosen_N = torch.empty(len(ids_N), dtype=torch.float32, device=ids_N.device)
    top_ids_NK = torch.empty((len(ids_N), num_top), dtype=torch.int32, device=ids_N.device)
    top_logprobs_NK = torch.empty((len(ids_N), num_top), dtype=torch.float32, device=ids_N.device)
    slice_tokens = max(1, (SLICE_ELEMENTS_CUDA if ids_N.is_cuda else SLICE_ELEMENTS_CPU) // vocab_size)
    for start in range(0, len(ids_N), slice_tokens):
        part = slice(start, start + slice_tokens)
        scored = top_logprobs(make_logits(part), ids_N[part], num_top)
        for whole, computed in zip((chosen_N, top_ids_NK, top_logprobs_NK), scored, strict=True):
            whole[part].copy_(computed)
    return TokenScores(ids_N, chosen_N, top_ids_NK, top_logprobs_NK)


def _to_bytes(values: Tensor) -> bytes:
    return values.cpu().numpy().tobytes()
