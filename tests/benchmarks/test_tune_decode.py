"""The sweep of decode attention: in Triton's interpreter, and the choice from times."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs triton")
from benchmarks import tune_decode
from benchmarks.result_file import ROOT
from benchmarks.tune_decode import Candidate, CaseTimes, choose, find_fault, list_candidates, summarize


def test_it_runs_in_the_interpreter(tmp_path: Path) -> None:
    """In a process of its own: kernels are interpreted, or not, from their import on."""
    file = tmp_path / "tune.json"
    command = [sys.executable, "-m", "benchmarks.tune_decode", "--device", "cpu", "--quick", "--rounds", "1"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([*command, "--json", str(file)], cwd=ROOT, env=environment, timeout=100, check=True)
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    (case,) = results["cases"]
    assert case["refused"] == []
    assert [row["merges"] for row in sorted(case["rows"], key=lambda row: row["merges"])] == [False, True]
    (line,) = results["table"]
    assert {name: line[name] for name in ("num_heads", "num_kv_heads", "head_dim")} == {
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 128,
    }
    chosen = {name: line[name] for name in results["in_use"]}
    assert chosen in [{name: row[name] for name in chosen} for row in case["rows"]]


def test_candidates_begin_with_what_is_in_use_and_differ() -> None:
    candidates = list_candidates(128, 4)
    assert candidates[0] == Candidate(64, 4, 3, 4, merges=False)
    assert len(set(candidates)) == len(candidates) == len(tune_decode.LAUNCHES) * len(tune_decode.PROGRAMS) * 2


def test_a_budget_that_is_used_up_leaves_what_has_been_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One candidate of one case, and its table."""
    monkeypatch.setattr(tune_decode, "load_triton_kernels", lambda device_type: None)
    monkeypatch.setattr(
        tune_decode, "paged_decode", lambda *arguments: tune_decode.paged_decode_reference(*arguments[:6])
    )
    monkeypatch.setattr(tune_decode, "ROWS_AND_CONTEXTS", ((2, 20), (1, 20)))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    file = tmp_path / "tune.json"
    assert tune_decode.main(["--device", "cpu", "--rounds", "1", "--budget-s", "0", "--json", str(file)]) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert [(case["case"], len(case["rows"])) for case in results["cases"]] == [("2 x 20", 1)]
    assert results["table"][0]["BLOCK_N"] == results["in_use"]["BLOCK_N"]


def case(*times: float | None) -> CaseTimes:
    """A case with these times by candidate; `None`: refused."""
    found = CaseTimes("a case", 1_000_000)
    for index, us in enumerate(times):
        if us is None:
            found.refused[index] = "differs"
        else:
            found.times_us[index] = us
    return found


def test_the_least_mean_over_each_cases_best_is_chosen() -> None:
    """Neither the sum, which the longest case would decide, nor the most firsts."""
    assert choose([case(100, 90, 300), case(10, 13, 30), case(1, 1.2, 0.5)]) == (0, pytest.approx((20 / 9) ** (1 / 3)))
    assert choose([case(4, 2), case(4, 2)]) == (1, 1.0)


def test_what_failed_in_one_case_is_not_chosen() -> None:
    assert choose([case(4, 2), case(4, None)])[0] == 0
    best, mean = choose([case(None, None)])
    assert best is None
    assert math.isnan(mean)
    assert choose([])[0] is None


def test_the_table_is_empty_if_nothing_ran_and_says_if_what_is_in_use_failed() -> None:
    candidates = list_candidates(128, 4)
    assert summarize([case(None)], candidates, "Llama-3-8B")["table"] == []
    summary: Any = summarize([case(None, 8.0)], candidates, "Llama-3-8B")
    (line,) = summary["table"]
    assert (line["num_heads"], line["times_best"], line["times_best_of_that_in_use"]) == (32, 1.0, None)
    json.dumps(summary, allow_nan=False)
    assert summary["cases"][0]["rows"][0]["GB/s"] == pytest.approx(125)


def test_a_wrong_result_an_unwritten_one_and_an_error_are_faults() -> None:
    torch = pytest.importorskip("torch")
    out, expected = torch.zeros(3), torch.tensor([1.0, 2.0, 4.0])

    def write(*values: float) -> Any:
        return lambda: out.copy_(torch.tensor(values))

    def fail() -> None:
        raise RuntimeError("out of resource: shared memory")

    assert find_fault(write(1.0, 2.01, 4.0), out, expected) == ""
    assert find_fault(write(1.0, 2.5, 4.0), out, expected) == "differs from torch by 1.2e-01"
    assert find_fault(write(1.0, math.nan, 4.0), out, expected) == "differs from torch by nan"
    assert find_fault(fail, out, expected) == "RuntimeError: out of resource: shared memory"
