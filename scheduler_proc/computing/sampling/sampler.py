"""Turns logits into next tokens as each row's sampling parameters say.

Shape legend: S rows that sample, N special ones of them, V vocabulary.
On a GPU nothing here waits for the device: which rows need what is in the plan.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.sample import NO_TOKEN, draw, greedy, sample
from scheduler_proc.computing.sampling.filters import filter_scores
from scheduler_proc.computing.sampling.logits_processing import process_logits
from scheduler_proc.computing.sampling.plan import SamplingPlan


def choose_tokens(
    logits_SV: Tensor, plan: SamplingPlan, columns: Mapping[str, Tensor], likeliest_S: Tensor | None = None
) -> Tensor:
    """Returns the next token of each row (int32 [S]), -1 where a logit of the row is not finite.

    `columns` are those of the plan on the device of the logits; `likeliest_S` the tokens of `greedy`, where known.

    A row's token is a function of its logits, its logits processing, its parameters and (seed, position): not of the
    other rows. A row that logits processing (`logits_processing.py`) leaves without a token of finite logit has none,
    -1. Filters come after temperature, in the order of `FILTERS`. Rows without one do not pay for it.
    """
    if "temperatures" in columns:
        tokens_S = draw(logits_SV, columns["temperatures"], columns["seeds"], columns["positions"])
    else:
        tokens_S = greedy(logits_SV) if likeliest_S is None else likeliest_S.clone()
    if plan.num_special:
        _choose_special(logits_SV, tokens_S, plan, columns)
    return tokens_S.to(torch.int32)


def _choose_special(logits_SV: Tensor, tokens_S: Tensor, plan: SamplingPlan, columns: Mapping[str, Tensor]) -> None:
    """Writes the special rows' tokens over those they have so far, which say whether their logits are finite."""
    num_unprocessed, num_drawn, rows_N = plan.num_unprocessed, plan.num_drawn, columns["special_rows"]
    scores_NV = logits_SV.index_select(0, rows_N).float()
    chosen_N = tokens_S.index_select(0, rows_N)
    is_possible_N = chosen_N != NO_TOKEN
    if num_unprocessed < plan.num_special:
        process_logits(scores_NV, columns)
        is_possible_N[num_unprocessed:].logical_and_(scores_NV[num_unprocessed:].amax(dim=-1).isfinite())
    if num_drawn < plan.num_special:
        chosen_N[num_drawn:].copy_(scores_NV[num_drawn:].max(dim=-1).indices)
    if num_drawn:
        chosen_N[:num_drawn].copy_(_draw_special(scores_NV[:num_drawn], columns))
    tokens_S.index_copy_(0, rows_N, chosen_N.where(is_possible_N, NO_TOKEN))


def _draw_special(scores_NV: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
    """Returns a token for each row (int64 [N]), drawn from its logits, which are overwritten."""
    scores_NV.div_(columns["special_temperatures"][:, None])
    filter_scores(scores_NV, columns)
    return sample(scores_NV, columns["special_seeds"], columns["special_positions"])
