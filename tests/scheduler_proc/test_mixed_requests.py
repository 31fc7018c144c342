"""Speculation changes no token: requests of every kind, with the draft tokens of n-gram lookup and without."""

from array import array
from pathlib import Path

import pytest

from scheduler_proc.deciding import row_results
from tests.scheduler_proc.mixed_requests import FAMILIES, check, family_config


@pytest.mark.parametrize("variant", FAMILIES)
def test_outputs_are_the_same(tmp_path: Path, variant: str):
    gauges = check(family_config(tmp_path, variant), 40)
    assert gauges["accepted_tokens"] > 20
    assert gauges["draft_tokens"] > gauges["accepted_tokens"], "no draft token was wrong"
    assert gauges["preemptions"] > 0


def test_the_check_notices_a_wrong_draft_that_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def accept_all(draft_ids: "array[int]", sampled: "array[int]") -> int:
        return len(sampled)

    monkeypatch.setattr(row_results, "num_accepted", accept_all)
    with pytest.raises(AssertionError, match="request"):
        check(family_config(tmp_path, "gpt2"), 20)
