"""Turns logits into next tokens as each row's sampling parameters say.

Shape legend: S rows that sample, N special ones of them, V vocabulary.
On a GPU nothing here waits for the device: which rows need what is in the plan.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.arguments.rows import RowDraws
from kernels.dispatch import find_implementation
from kernels.operations.draw_filtered import draw_filtered
from kernels.operations.sample import NO_TOKEN, draw, greedy, sample
from scheduler_proc.computing.sampling.filters import filter_scores
from scheduler_proc.computing.sampling.logits_processing import process_logits
from scheduler_proc.computing.sampling.plan import SamplingPlan


def choose_tokens(
    logits_SV: Tensor, plan: SamplingPlan, columns: Mapping[str, Tensor], plain_S: Tensor | None = None
) -> Tensor:
    """Returns the next token of each row (int32 [S]), -1 where a logit of the row is not finite.

    `columns` are those of the plan on the device of the logits; `plain_S` the tokens of rows as if all
    were plain, where known.

    A row's token is a function of its logits, its logits processing, its parameters and (seed, position): not of the
    other rows. A row that logits processing (`logits_processing.py`) leaves without a token of finite logit has none,
    -1. Filters come after temperature, in the order of `FILTERS`. Rows without one do not pay for it.
    With a Triton kernel, rows that are filtered by `ONE_READ` alone are read once and not copied.
    """
    draws_once = find_implementation("draw_filtered", logits_SV) is not None
    if draws_once and plan.num_one_read == len(logits_SV):
        tokens_S = torch.empty(len(logits_SV), dtype=torch.int32, device=logits_SV.device)
    elif plain_S is not None:
        tokens_S = plain_S.clone()
    elif "temperatures" in columns:
        tokens_S = draw(logits_SV, columns["temperatures"], columns["seeds"], columns["positions"])
    else:
        tokens_S = greedy(logits_SV)
    first = plan.num_one_read if draws_once else 0
    if first:
        rows_N = columns["special_rows"][:first]
        tokens_S.index_copy_(0, rows_N, draw_filtered(logits_SV, rows_N, _row_draws(columns, first)))
    if first < plan.num_special:
        _choose_special(logits_SV, tokens_S, plan, columns, first)
    return tokens_S.to(torch.int32)


def _choose_special(
    logits_SV: Tensor, tokens_S: Tensor, plan: SamplingPlan, columns: Mapping[str, Tensor], first: int
) -> None:
    """Writes the tokens of the special rows from `first` on over those they have so far, which say whether their logits
    are finite. The rows are copied."""
    num_unprocessed, num_drawn = plan.num_unprocessed - first, plan.num_drawn - first
    rows_N = columns["special_rows"][first:]
    scores_NV = logits_SV.index_select(0, rows_N).float()
    chosen_N = tokens_S.index_select(0, rows_N)
    is_possible_N = chosen_N != NO_TOKEN
    if num_unprocessed < len(rows_N):
        scores_PV = scores_NV[num_unprocessed:]
        process_logits(scores_PV, columns)
        is_possible_N[num_unprocessed:].logical_and_(scores_PV.amax(dim=-1).isfinite())
    if num_drawn < len(rows_N):
        chosen_N[num_drawn:].copy_(scores_NV[num_drawn:].max(dim=-1).indices)
    if num_drawn:
        chosen_N[:num_drawn].copy_(_draw_special(scores_NV[:num_drawn], plan, columns, first))
    tokens_S.index_copy_(0, rows_N, chosen_N.where(is_possible_N, NO_TOKEN))


def _draw_special(scores_NV: Tensor, plan: SamplingPlan, columns: Mapping[str, Tensor], first: int) -> Tensor:
    """Returns a token for each row (int64 [N]), drawn from its logits, which are overwritten."""
    scores_NV.div_(columns["special_temperatures"][first:, None])
    filter_scores(scores_NV, columns, plan.columns, first)
    return sample(scores_NV, columns["special_seeds"][first:], columns["special_positions"][first:])


def _row_draws(columns: Mapping[str, Tensor], num_rows: int) -> RowDraws:
    """Of the first special rows."""
    draws = [columns[f"special_{name}"][:num_rows] for name in ("temperatures", "seeds", "positions")]
    return RowDraws(*draws, *(columns[f"one_read_{name}"] for name in ("top_ks", "top_ps", "min_ps")))
