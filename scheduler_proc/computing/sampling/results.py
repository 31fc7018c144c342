"""The results of a step, computed from its forward pass on the device and read in host memory.

Shape legend: S rows that sample, Q hidden tokens, E embedding size, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from messages.columns import pack_int32
from messages.ring.steps import ForwardOutput
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.sampling.logprobs import MAX_LOGITS, TokenLogprobs, prompt_logprobs, sampled_logprobs
from scheduler_proc.computing.sampling.plan import SamplingPlan
from scheduler_proc.computing.sampling.pooling import compute_pooled, read_pooled
from scheduler_proc.computing.sampling.sampler import choose_tokens
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.inputs import StepInputs


class Forwarded(NamedTuple):
    """The output of a step's forward pass on its device; the next step may overwrite it."""

    logits: Tensor
    """[S, V], or none if there are `best`."""
    hidden: Tensor
    """[Q, E]: the hidden states of `Batch.hidden_tokens`."""
    columns: Mapping[str, Tensor]
    """The columns of the `SamplingPlan`."""
    plain: np.ndarray | None = None
    """int64 [S]: the rows' tokens as if all were plain, if the forward pass has put them into host memory."""
    head_slots: Tensor | None = None
    """int32 [Q]: the adapter's slot of each hidden state, if an adapter may have a head of its own."""
    best: Tensor | None = None
    """int32 [S]: the rows' likeliest tokens, if the forward pass has found them in place of logits."""


def head_slots(step: StepInputs, num_sampled: int) -> Sequence[Tensor | None]:
    """Returns the adapters' slots of the sampled ones among `step.head_tokens` and of the others, if rows have any."""
    slots_T = step.view(ADAPTERS)
    return (None, None) if slots_T is None else slots_T[step.head_tokens].tensor_split((num_sampled,))


Result = Sequence[Tensor] | np.ndarray
"""Next tokens ([S], -1: the row has none), followed by the four tensors of each requested `TokenLogprobs` and by the
vectors of pooled rows.

An array instead if only next tokens are requested and the host already has them.
"""


def compute_result(decoder: Decoder, forwarded: Forwarded, plan: SamplingPlan, max_logits: int = MAX_LOGITS) -> Result:
    """Computes the results of a step that the plan requests."""
    if plan.has_plain_rows_alone and forwarded.plain is not None:
        return forwarded.plain
    logits_SV, hidden_QE, columns, plain_S, slots_Q, best_S = forwarded
    with torch.inference_mode():
        known_S = None if plain_S is None else torch.from_numpy(plain_S)
        tokens_S = choose_tokens(logits_SV, plan, columns, known_S) if best_S is None else best_S
        result = [tokens_S]
        if plan.num_top >= 0:
            result += sampled_logprobs(logits_SV, tokens_S, plan, columns, max_logits)
        if plan.num_prompt_top >= 0:
            num_targets = len(columns["prompt_ids"])
            slots_of_prompts = None if slots_Q is None else slots_Q[:num_targets]
            result += prompt_logprobs(hidden_QE[:num_targets], decoder, plan, columns, max_logits, slots_of_prompts)
            hidden_QE, slots_Q = hidden_QE[num_targets:], None if slots_Q is None else slots_Q[num_targets:]
        if plan.pooling is not None:
            result += compute_pooled(hidden_QE, slots_Q, decoder, plan.pooling, columns, max_logits)
    return result


def read_result(step_id: int, plan: SamplingPlan, result: Result) -> ForwardOutput:
    """Returns the result of `compute_result` as a message; its tensors must be in host memory."""
    if isinstance(result, np.ndarray):
        return ForwardOutput(step_id, pack_int32(result.tolist()))
    parts = iter(result[1:])
    logprobs, of_prompts = (
        TokenLogprobs(*(next(parts) for _ in TokenLogprobs._fields)).columns() if num_top >= 0 else None
        for num_top in (plan.num_top, plan.num_prompt_top)
    )
    pooled = None if plan.pooling is None else read_pooled(plan.pooling, list(parts))
    return ForwardOutput(step_id, result[0].numpy().tobytes(), logprobs, of_prompts, pooled=pooled)
