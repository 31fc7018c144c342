"""A test that skips for a reason that is not listed fails in the environment of `make test`."""

from pathlib import Path

import pytest

from tests import skips
from tests.skips import ALLOWED, refuse_other_reasons


def report(reason: str) -> pytest.TestReport:
    where = ("test_a.py", 1, f"Skipped: {reason}")
    return pytest.TestReport("test_a.py::test", ("test_a.py", 1, "test"), {}, "skipped", where, "call")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("needs ../shared (real tokenizers) beside the checkout", "skipped"),
        ("/a/model.gguf was not fetched", "skipped"),
        ("could not import 'scipy': No module named 'scipy'", "failed"),
        ("ollama is not installed", "failed"),
        ("", "failed"),
    ],
)
def test_only_listed_reasons_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, outcome: str) -> None:
    monkeypatch.setattr(skips, "STAMP", tmp_path)
    skipped = report(reason)
    refuse_other_reasons(skipped)
    assert skipped.outcome == outcome
    if outcome == "failed":
        assert reason in str(skipped.longrepr)


def test_elsewhere_any_reason_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "STAMP", tmp_path / "none")
    skipped = report("could not import 'scipy'")
    refuse_other_reasons(skipped)
    assert skipped.outcome == "skipped"


def test_each_listed_reason_stands_in_a_test() -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py"))
    begins = [begin.removeprefix(".*").strip().replace("\\", "") for group in ALLOWED.values() for begin in group]
    assert [begin for begin in begins if texts.count(begin) < 2] == []
