"""Files that the documents name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))

TOPS = [top for top in ROOT.iterdir() if not top.name.startswith(".")]
TREE = [path.relative_to(ROOT) for top in TOPS for path in (top, *top.rglob("*"))]
ENDS = {"/".join(path.parts[first:]) for path in TREE for first in range(len(path.parts))}
"""Each path, and each shorter form that leaves out the folders in front."""

NAMED = re.compile(r"`(?:\.\./)*([\w.-][\w./-]*(?:\.(?:py|c|h|md)|/))`")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_exists(page: str):
    named = set(NAMED.findall((ROOT / page).read_text(encoding="utf-8")))
    missing = sorted(name for name in named if "NAME" not in name and name.rstrip("/") not in ENDS)
    assert not missing, f"{page} names {', '.join(missing)}"


DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
MAX_DECISION_WORDS = 300
PARTS = ("**Context.**", "**Choice.**", "**Cost.**", "**Undo.**")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_short_and_has_four_parts_in_order(page: Path):
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= MAX_DECISION_WORDS
    places = [text.find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    assert [text.count(part) for part in PARTS] == [1] * len(PARTS)


def test_the_list_of_decisions_has_every_title():
    listed = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    lines = [f"- [{page.read_text(encoding='utf-8').splitlines()[0][2:]}]({page.name})" for page in DECISIONS]
    assert [line for line in listed.splitlines() if line.startswith("- ")] == lines


def test_names_are_found():
    named = set(NAMED.findall((ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert {"frontend/", "kernels/plans/decode_work.py"} <= named


BY_NAME = re.compile(r"sluice\[|install (?:-\S+ )*'?sluice\b")
"""On the index, that name is another program's: the extras of ours are those of its directory (`.[ray]`)."""


def test_nobody_is_told_to_install_it_by_its_name():
    files = [ROOT / path for path in TREE if path.suffix in (".py", ".md", ".yaml") and path.name != "CHANGELOG.md"]
    told = [file for file in files if file != Path(__file__) and BY_NAME.search(file.read_text(encoding="utf-8"))]
    assert not told
