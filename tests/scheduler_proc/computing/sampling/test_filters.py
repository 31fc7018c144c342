"""Which rows each filter is for, with which numbers; that they filter right is tested where tokens are chosen."""

import numpy as np
import torch

from scheduler_proc.computing.sampling.filters import ALL_TOKENS, FILTERS, filter_scores, plan_filters, read_numbers
from tests.scheduler_proc.plain_steps import plain_step

VOCAB_SIZE = 10
COLUMNS = {
    "top_ks": np.array([0, 3, VOCAB_SIZE, 0, 2], np.int32).tobytes(),
    "top_ps": np.array([1.0, 1.0, 1.0, 0.5, 0.25], np.float32).tobytes(),
    "min_ps": np.array([0.0, 0.5, 0.0, 0.0, 0.0], np.float32).tobytes(),
}


def test_rows_without_a_filter_have_no_part_in_it():
    numbers = read_numbers(plain_step(5, **COLUMNS))
    used = {each.name: each.is_used(numbers, VOCAB_SIZE) for each in FILTERS}
    assert (list(np.flatnonzero(used["top"])), list(np.flatnonzero(used["min_p"]))) == ([1, 3, 4], [1])
    columns = plan_filters(numbers, used, np.array([4, 0, 1]))
    assert list(columns["top_places"]) == [0, 2]
    assert list(columns["top_top_ks"]) == [2, 3]
    assert list(columns["top_top_ps"]) == [0.25, 1.0]
    assert (list(columns["min_p_places"]), list(columns["min_p_min_ps"])) == ([2], [0.5])
    only_top_p = plan_filters(numbers, used, np.array([3]))
    assert list(only_top_p["top_top_ks"]) == [ALL_TOKENS]


def test_only_the_rows_of_a_filter_change():
    numbers = read_numbers(plain_step(5, **COLUMNS))
    used = {each.name: each.is_used(numbers, VOCAB_SIZE) for each in FILTERS}
    columns = {name: torch.from_numpy(column) for name, column in plan_filters(numbers, used, np.arange(5)).items()}
    before = torch.arange(VOCAB_SIZE, dtype=torch.float32).repeat(5, 1)
    after = before.clone()
    filter_scores(after, columns)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert [int(row.isfinite().sum()) for row in after] == [10, 1, 10, 1, 1]
