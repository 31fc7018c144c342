import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page.cpu_engine import readme_table, vectors_text
from benchmarks.performance_page import DOCS, RESULTS, ROOT, make_pages


def test_the_pages_are_those_of_the_committed_results() -> None:
    for name, text in make_pages(RESULTS).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text


def test_the_readme_has_the_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_table(RESULTS) in text
    assert vectors_text(EXPERIMENTS) in text


EXPERIMENTS = ROOT / "benchmarks" / "experiments"
MAX_COMMITS = 400
MEASURED = ("kernels", "scheduler_proc", "frontend")


@pytest.mark.parametrize("page", ["README.md", "docs/speed/performance.md"])
def test_no_number_that_readers_see_first_is_of_an_old_commit(page: str) -> None:
    """`make bench` and `benchmarks.bench_cpu` measure again; a comparison may go to `cpu_earlier.json` instead."""
    named = set(re.findall(r"\bcommit ([0-9a-f]{12})\b", (ROOT / page).read_text(encoding="utf-8")))
    assert named
    for commit in named:
        git = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *MEASURED]
        counted = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        if counted.returncode != 0:
            pytest.skip(f"needs the history of the repository: {counted.stderr.strip()}")
        assert int(counted.stdout) <= MAX_COMMITS, f"{page}: {commit} is {counted.stdout.strip()} commits old"


def results_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the results of a file: its runs, or its only result."""
    return list(document["runs"].values()) if "runs" in document else [document]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_every_committed_result_is_of_a_clean_commit(file: Path) -> None:
    for result in results_in(json.loads(file.read_text(encoding="utf-8"))):
        assert not result["commit"].endswith("-dirty")


def test_the_first_table_is_of_one_machine_one_commit_and_one_day() -> None:
    loads = results_in(json.loads((RESULTS / "server.json").read_text(encoding="utf-8")))
    runs = {(*load["machine"].values(), load["commit"], load["when"][:10]) for load in without_load_average(loads)}
    assert len(runs) == 1


def without_load_average(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [result | {"machine": result["machine"] | {"load_1min": 0}} for result in results]
