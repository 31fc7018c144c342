"""`make bench`: it writes every result that the pages show, and the folder stays small."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarks import run_all
from benchmarks.performance_page import RESULTS
from benchmarks.result_file import ROOT

MAX_FILES = 66
BY_HAND = ("gpu", "cpu_earlier", "before_after")
"""Begin the names of results that need a GPU, old code, or another checkout."""


@contextmanager
def no_server(*_: object) -> Iterator[tuple[None, SimpleNamespace]]:
    yield None, SimpleNamespace(host="127.0.0.1", port=1)


def test_it_writes_every_result_that_the_pages_show(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(run_all, "run", lambda name, module, *flags: written.append(name.partition("#")[0]))
    monkeypatch.setattr(run_all, "started_server", no_server)
    monkeypatch.setattr(run_all.performance_page, "main", lambda: 0)
    monkeypatch.setattr("sys.argv", ["run_all", "--peer", "a=http://127.0.0.1:1/m"])
    assert run_all.main() == 0
    assert {f"{name}.json" for name in written} == {
        file.name for file in RESULTS.glob("*.json") if not file.name.startswith(BY_HAND)
    }


def test_the_benchmarks_are_few() -> None:
    files = [path for path in (ROOT / "benchmarks").rglob("*") if path.suffix in (".py", ".json")]
    assert len([path for path in files if "experiments" not in path.parts]) <= MAX_FILES
