"""Files that documents of the code name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["docs/ARCHITECTURE.md", "docs/CHANGING.md"]

TOPS = [top for top in ROOT.iterdir() if not top.name.startswith(".")]
TREE = [path.relative_to(ROOT) for top in TOPS for path in (top, *top.rglob("*"))]
ENDS = {"/".join(path.parts[first:]) for path in TREE for first in range(len(path.parts))}
"""Each path, and what may be left of it where a page has named its folder before."""

NAMED = re.compile(r"`([\w./-]+(?:\.(?:py|c|h|md)|/))`")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_exists(page: str):
    named = {name for name in NAMED.findall((ROOT / page).read_text(encoding="utf-8")) if "NAME" not in name}
    assert len(named) > 30
    missing = sorted(name for name in named if name.rstrip("/") not in ENDS)
    assert not missing, f"{page} names {', '.join(missing)}"
