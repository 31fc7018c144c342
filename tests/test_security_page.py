"""Each promise of docs/operate/security.md names tests that there are."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/operate/security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_each_named_test_exists():
    assert len(NAMED) > 30
    for file, name in NAMED:
        functions = [node for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")]
        assert name in {getattr(node, "name", "") for node in functions}, f"{file}::{name}"


def test_each_promise_names_one():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promised")]
    assert len(rows) > 20
    for row in rows:
        assert re.search(r"\| `tests/[\w/]+\.py::\w+`(, `tests/[\w/]+\.py::\w+`)* \|$", row), row
