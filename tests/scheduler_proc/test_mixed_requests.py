"""Speculation changes no token: requests of every kind, with the draft tokens of n-gram lookup and without."""

from array import array
from pathlib import Path

import pytest

from scheduler_proc.deciding import row_results
from tests.checkpoints import build_checkpoint
from tests.scheduler_proc.mixed_requests import FAMILIES, check, family_config


@pytest.mark.parametrize("variant", FAMILIES)
def test_outputs_are_the_same(tmp_path: Path, variant: str):
    gauges = check(family_config(tmp_path, variant), 40)
    assert gauges["accepted_tokens"] > 20
    assert gauges["draft_tokens"] > gauges["accepted_tokens"], "no draft token was wrong"
    assert gauges["preemptions"] > 0


@pytest.mark.parametrize(("variant", "draft_variant"), [("gpt2", "gpt2"), ("qwen3-gqa-tied", "llama-mqa")])
def test_outputs_are_the_same_with_a_draft_model(tmp_path: Path, variant: str, draft_variant: str):
    """With the model as its own draft model, which is nearly always right, and with an unrelated one."""
    build_checkpoint(tmp_path / "draft", draft_variant)
    gauges = check(family_config(tmp_path / "model", variant, tmp_path / "draft"), 40)
    accepted, drafted = gauges["accepted_tokens"], gauges["draft_tokens"]
    assert gauges["preemptions"] > 0
    if draft_variant == variant:
        assert accepted > 0.97 * drafted > 300
    else:
        assert 0 < accepted < 0.5 * drafted


def test_the_check_notices_a_wrong_draft_that_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def accept_all(draft_ids: "array[int]", sampled: "array[int]") -> int:
        return len(sampled)

    monkeypatch.setattr(row_results, "num_accepted", accept_all)
    with pytest.raises(AssertionError, match="request"):
        check(family_config(tmp_path, "gpt2"), 20)
