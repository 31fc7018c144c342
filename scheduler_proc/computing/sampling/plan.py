"""What each row of a step needs before it has a token, worked out on the host.

Shape legend: S rows that sample, N special ones of them, V vocabulary.
The device receives the indices of these rows, and everything else about them, in one copy.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from messages.ring.steps import Batch
from scheduler_proc.computing.sampling.filters import (
    FILTERS,
    ONE_READ,
    asks_for_filters,
    plan_filters,
    plan_one_read,
    read_numbers,
)
from scheduler_proc.computing.sampling.logits_processing import expand_logits_processing, find_processed
from scheduler_proc.computing.sampling.pooling import PoolingPlan, plan_pooling


@dataclass(frozen=True)
class SamplingPlan:
    """A row is plain if its logits need only its temperature, otherwise special. Special rows are ordered: first rows
    that are only filtered, then rows that are processed and drawn, then rows that are processed and greedy."""

    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """The data that the device needs, by name; empty if each row only needs its likeliest token.

    For plain rows that are drawn: `temperatures`, `seeds` and `positions` of all S rows, with temperature 0 for greedy
    and special rows. For special rows: `special_…` and the columns of their processing. For logprobs: `logprob_rows`
    (int64, indices into S) and `prompt_ids` (int32 [Q]), the prompt tokens whose logprobs are requested."""
    num_special: int = 0
    """N"""
    num_unprocessed: int = 0
    """Special rows from this one on are processed."""
    num_drawn: int = 0
    """Special rows before this one are drawn."""
    num_top: int = -1
    """The most alternatives that a row requests; -1 if no row requests logprobs."""
    num_prompt_top: int = -1
    """The alternatives per prompt token; -1 if no prompt's logprobs are requested."""
    num_one_read: int = 0
    """Special rows before this one are only filtered by `ONE_READ`."""
    pooling: PoolingPlan | None = None
    """`None` if no row is pooled."""

    @property
    def has_plain_rows_alone(self) -> bool:
        """True if each row only needs a token, greedy or drawn."""
        return not self.num_special and self.num_top < 0 and self.num_prompt_top < 0 and self.pooling is None


GREEDY = SamplingPlan()


def plan_sampling(batch: Batch, vocab_size: int) -> SamplingPlan:
    """Returns how the rows of `batch` that sample get their tokens, and which tokens have logprobs."""
    needs_more = batch.logits_processing or batch.num_logprobs or batch.hidden_tokens
    if not needs_more and batch.temperatures.count(0) == len(batch.temperatures):
        return GREEDY  # costs next to nothing, as the next case: most steps are one of these
    if not needs_more and not asks_for_filters(batch):
        return SamplingPlan(_plain_draws(batch, np.frombuffer(batch.temperatures, np.float32)))
    columns: dict[str, np.ndarray] = {}
    num_top, num_prompt_top = _plan_logprobs(batch, vocab_size, columns)
    pooling = None if batch.pooled is None else plan_pooling(batch.pooled, columns)
    temperatures = np.frombuffer(batch.temperatures, np.float32)
    num_rows, is_drawn = len(temperatures), temperatures > 0
    is_processed = find_processed(batch.logits_processing, num_rows)
    if not (is_drawn | is_processed).any():
        return SamplingPlan(columns, num_top=num_top, num_prompt_top=num_prompt_top, pooling=pooling)
    numbers = read_numbers(batch)
    used = {each.name: each.is_used(numbers, vocab_size) for each in FILTERS}
    is_filtered = is_drawn & ~is_processed & np.logical_or.reduce(list(used.values()))
    is_plain_draw = is_drawn & ~is_processed & ~is_filtered
    if is_plain_draw.any():
        columns |= _plain_draws(batch, np.where(is_plain_draw, temperatures, np.float32(0)))
    is_one_read = is_filtered & ~np.logical_or.reduce([rows for name, rows in used.items() if name not in ONE_READ])
    drawn_groups = is_one_read, is_filtered & ~is_one_read, is_drawn & is_processed
    groups = [np.flatnonzero(group) for group in (*drawn_groups, ~is_drawn & is_processed)]
    rows, (num_one_read, num_unprocessed, num_drawn, _) = np.concatenate(groups), accumulate(map(len, groups))
    if len(rows):
        columns["special_rows"] = rows
        columns |= _plan_logits_processing(batch, rows[num_unprocessed:], vocab_size)
    if num_drawn:
        columns |= _plan_draws(batch, rows[:num_drawn])
        columns |= plan_filters(numbers, used, rows[:num_drawn])
    if num_one_read:
        columns |= plan_one_read(numbers, rows[:num_one_read])
    counts = len(rows), num_unprocessed, num_drawn, num_top, num_prompt_top, num_one_read
    return SamplingPlan(columns, *counts, pooling)


def _plan_logprobs(batch: Batch, vocab_size: int, columns: dict[str, np.ndarray]) -> tuple[int, int]:
    """Adds the columns of tokens with logprobs; returns the alternatives of rows and of prompt tokens."""
    num_top = -1
    if batch.num_logprobs:
        num_logprobs = np.frombuffer(batch.num_logprobs, np.int32)
        num_top = int(num_logprobs.max())
        if num_top >= 0:
            assert len(num_logprobs) == len(batch.temperatures) // 4
            columns["logprob_rows"] = np.flatnonzero(num_logprobs >= 0)
    if batch.prompt_logprobs is None:
        return num_top, -1
    prompt_ids = np.frombuffer(batch.prompt_logprobs.target_ids, np.int32)
    assert len(prompt_ids) == 0 or 0 <= prompt_ids.min() <= prompt_ids.max() < vocab_size
    columns["prompt_ids"] = prompt_ids
    return num_top, batch.prompt_logprobs.num_top


def _plan_logits_processing(batch: Batch, rows: np.ndarray, vocab_size: int) -> dict[str, np.ndarray]:
    """Returns the columns of processing; `rows` are the processed special rows, in the order of their copies."""
    if batch.logits_processing is None:
        return {}
    places, sources = np.full(batch.num_sampled, -1, np.int64), np.full(batch.num_sampled, -1, np.int32)
    places[rows] = np.arange(len(rows))
    future_token_indices = np.frombuffer(batch.future_token_indices, np.int32)
    sources[: len(future_token_indices)] = future_token_indices  # the decode rows are the first that sample
    return expand_logits_processing(batch.logits_processing, places, sources, vocab_size)


def _plain_draws(batch: Batch, temperatures: np.ndarray) -> dict[str, np.ndarray]:
    seeds, positions = np.frombuffer(batch.seeds, np.int64), np.frombuffer(batch.sample_positions, np.int64)
    return {"temperatures": temperatures, "seeds": seeds, "positions": positions}


def _plan_draws(batch: Batch, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns how special rows are drawn; `rows` are their indices."""
    draws = _plain_draws(batch, np.frombuffer(batch.temperatures, np.float32))
    return {f"special_{name}": column[rows] for name, column in draws.items()}
