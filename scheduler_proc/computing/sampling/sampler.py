"""Turns logits into next tokens by each row's sampling parameters.

Shape legend: S rows that sample, N special ones of them, V vocabulary.
On a GPU nothing here waits for the device: the plan has what each row needs.
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
    """Returns the next token of each row (int32 [S]), -1 if a logit of the row is not finite.

    `columns` are the plan's, on the device of the logits; `plain_S` has the tokens as if all rows were plain, if known.

    A row's token depends on its logits, its logits processing, its parameters and (seed, position), not on other rows.
    A row that logits processing (`logits_processing.py`) leaves without a finite logit gets -1. Filters apply after
    temperature, in the order of `FILTERS`; rows without a filter do not pay for it. With a Triton kernel, rows that are
    only filtered by `ONE_READ` are read once and not copied.
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
    """Overwrites the tokens of the special rows from `first` on; the old tokens are -1 if logits are not finite.

    Works on copies of the rows.
    """
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
    """Returns a token per row (int64 [N]), drawn from its logits, which are overwritten."""
    scores_NV.div_(columns["special_temperatures"][first:, None])
    filter_scores(scores_NV, columns, plan.columns, first)
    return sample(scores_NV, columns["special_seeds"][first:], columns["special_positions"][first:])


def _row_draws(columns: Mapping[str, Tensor], num_rows: int) -> RowDraws:
    """Returns the parameters of the first special rows."""
    draws = [columns[f"special_{name}"][:num_rows] for name in ("temperatures", "seeds", "positions")]
    return RowDraws(*draws, *(columns[f"one_read_{name}"] for name in ("top_ks", "top_ps", "min_ps")))
