"""Logprobs of sampled tokens and prompt tokens under the model's own distribution, before its logits are changed.

Shape legend: S rows that sample, N tokens with logprobs, Q prompt tokens with logprobs, K alternatives, E embedding
size, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.operations.top_logprobs import top_logprobs
from messages.ring.steps import LogprobColumns
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.sampling.plan import SamplingPlan

MAX_LOGITS = 1 << 22
"""The default number of logits that are in memory at a time, 16 MiB in float32."""


class TokenLogprobs(NamedTuple):
    """Tokens with their logprobs, on any device."""

    token_ids: Tensor
    """int32 [N]"""
    logprobs: Tensor
    """float32 [N]"""
    top_ids: Tensor
    """int32 [N, K]"""
    top_logprobs: Tensor
    """float32 [N, K]"""

    def columns(self) -> LogprobColumns:
        """Returns them as a message; the tensors must be in the host's memory."""
        token_ids, logprobs, top_ids, top_logprobs = (values.numpy().tobytes() for values in self)
        return LogprobColumns(token_ids, logprobs, self.top_ids.shape[1], top_ids, top_logprobs)


def sampled_logprobs(
    logits_SV: Tensor,
    tokens_S: Tensor,
    plan: SamplingPlan,
    columns: Mapping[str, Tensor],
    max_logits: int = MAX_LOGITS,
) -> TokenLogprobs:
    """Returns the logprobs of the rows that request them, each aligned with its next token.

    A row without a next token keeps its place, with logprob NaN. `columns` are the plan's, on the device.
    """
    rows_N = columns["logprob_rows"]
    ids_N = tokens_S.index_select(0, rows_N)
    sizes = logits_SV.shape[1], max_logits
    return _logprobs(lambda part: logits_SV.index_select(0, rows_N[part]), ids_N, plan.num_top, *sizes)


def prompt_logprobs(
    hidden_QE: Tensor,
    decoder: Decoder,
    plan: SamplingPlan,
    columns: Mapping[str, Tensor],
    max_logits: int = MAX_LOGITS,
    slots_Q: Tensor | None = None,
) -> TokenLogprobs:
    """Returns the logprobs of the step's prompt tokens, from the hidden states of the tokens before them.

    They are NaN if logits are not finite. `slots_Q`: see `Forwarded.head_slots`.
    """
    ids_Q = columns["prompt_ids"]
    assert len(ids_Q) == len(hidden_QE)
    sizes = decoder.model.vocab_size, max_logits

    def make_logits(part: slice) -> Tensor:
        return decoder.logits(hidden_QE[part], None, None if slots_Q is None else slots_Q[part])

    return _logprobs(make_logits, ids_Q, plan.num_prompt_top, *sizes)


def _logprobs(
    make_logits: Callable[[slice], Tensor], ids_N: Tensor, num_top: int, vocab_size: int, max_logits: int
) -> TokenLogprobs:
    """Returns the logprobs of `ids_N` (int32); `make_logits` returns the logits of a slice of them.

    There are never more alternatives than tokens in the vocabulary.
    """
    num_top, slice_tokens = min(num_top, vocab_size), max(1, max_logits // vocab_size)
    chosen_N = torch.empty(len(ids_N), dtype=torch.float32, device=ids_N.device)
    top_ids_NK = torch.empty((len(ids_N), num_top), dtype=torch.int32, device=ids_N.device)
    top_logprobs_NK = torch.empty((len(ids_N), num_top), dtype=torch.float32, device=ids_N.device)
    for start in range(0, len(ids_N), slice_tokens):
        part = slice(start, start + slice_tokens)
        computed = top_logprobs(make_logits(part), ids_N[part], num_top)
        for whole, values in zip((chosen_N, top_ids_NK, top_logprobs_NK), computed, strict=True):
            whole[part].copy_(values)
    return TokenLogprobs(ids_N, chosen_N, top_ids_NK, top_logprobs_NK)
