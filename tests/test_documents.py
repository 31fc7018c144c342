"""Files that are named in the documents exist."""

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


def test_names_are_found():
    named = set(NAMED.findall((ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert {"frontend/", "kernels/plans/decode_work.py"} <= named


BY_NAME = re.compile(r"sluice\[|install (?:-\S+ )*'?sluice\b")
"""On PyPI, the name belongs to another program, so our extras are installed from the checkout (`.[ray]`)."""


def test_nobody_is_told_to_install_it_by_its_name():
    files = [ROOT / path for path in TREE if path.suffix in (".py", ".md", ".yaml") and path.name != "CHANGELOG.md"]
    told = [file for file in files if file != Path(__file__) and BY_NAME.search(file.read_text(encoding="utf-8"))]
    assert not told
