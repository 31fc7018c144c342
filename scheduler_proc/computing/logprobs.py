"""Logprobs of sampled tokens and of prompt tokens, as the model itself gives them, before anything changes its logits.

Shape legend: S rows that sample, N tokens with logprobs, Q scored tokens of prompts, K alternatives, E embedding size,
V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernels.top_logprobs import top_logprobs
from messages.steps import Batch, LogprobColumns
from scheduler_proc.computing.decoder import Decoder

SLICE_ELEMENTS_CUDA, SLICE_ELEMENTS_CPU = 1 << 25, 1 << 22
"""Logits that are worked on at a time, 128 and 16 MiB in float32: those of a whole prompt might not fit."""


def score_sampled(logits_SV: Tensor, tokens_S: Tensor, batch: Batch) -> LogprobColumns | None:
    """Returns the logprobs of the rows that want any, each aligned with its next token; `None` where none does.

    A row without a next token keeps its place, with the logprob NaN.
    """
    if not batch.num_logprobs:
        return None
    num_logprobs = np.frombuffer(batch.num_logprobs, np.int32)
    rows = np.flatnonzero(num_logprobs >= 0)
    if len(rows) == 0:
        return None
    assert len(num_logprobs) == len(logits_SV)
    rows_N = torch.from_numpy(rows).to(logits_SV.device)
    return _score(lambda part: logits_SV[rows_N[part]], tokens_S[rows_N], int(num_logprobs.max()), logits_SV.shape[1])


def score_prompt(hidden_QE: Tensor, decoder: Decoder, batch: Batch) -> LogprobColumns | None:
    """Returns the logprobs of `batch.scored` from what the head reads of its tokens; `None` where it is `None`.

    They are NaN where logits are not finite.
    """
    if batch.scored is None:
        return None
    vocab_size = decoder.config.vocab_size
    target_ids = np.frombuffer(batch.scored.target_ids, np.int32)
    assert len(target_ids) == len(hidden_QE)
    assert len(target_ids) == 0 or 0 <= target_ids.min() <= target_ids.max() < vocab_size
    ids_Q = torch.from_numpy(target_ids.copy()).to(hidden_QE.device)
    return _score(lambda part: decoder.logits(hidden_QE[part]), ids_Q, batch.scored.num_top, vocab_size)


def _score(make_logits: Callable[[slice], Tensor], ids_N: Tensor, num_top: int, vocab_size: int) -> LogprobColumns:
    """Returns the columns of `ids_N` (int32); `make_logits` gives the logits of a slice of them.

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
        chosen_N[part], top_ids_NK[part], top_logprobs_NK[part] = scored
    return LogprobColumns(
        token_ids=_to_bytes(ids_N),
        logprobs=_to_bytes(chosen_N),
        num_top=num_top,
        top_ids=_to_bytes(top_ids_NK),
        top_logprobs=_to_bytes(top_logprobs_NK),
    )


def _to_bytes(values: Tensor) -> bytes:
    return values.cpu().numpy().tobytes()
