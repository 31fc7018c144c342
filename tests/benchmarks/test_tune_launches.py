"""The sweep of launch parameters: in Triton's interpreter, and the choice from times."""

import ast
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs triton")
from benchmarks import launch_sweeps, tune_launches
from benchmarks.launch_sweeps import SWEEPS
from benchmarks.tune_launches import CaseTimes, choose, find_fault, list_candidates, summarize
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.triton_in_use import DEVICE, triton_in_use

IN_USE: dict[str, int] = {"BLOCK_N": 64, "num_warps": 4, "num_stages": 3, "programs": 4, "merges": 0}


def read_line(line: str) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Returns the key and the parameters of a line of the launch table."""
    ((key, parameters),) = ast.literal_eval("{" + line + "}").items()
    return key, parameters


@pytest.mark.parametrize("operation", SWEEPS)
@pytest.mark.skipif(DEVICE != "cpu", reason="where there is a GPU, kernels are compiled from their import on")
def test_it_runs_in_the_interpreter_and_writes_lines_of_the_table(operation: str, tmp_path: Path) -> None:
    file = tmp_path / "tune.json"
    with triton_in_use():
        flags = ["--device", "cpu", "--quick", "--rounds", "1", "--json", str(file)]
        assert tune_launches.main([operation, *flags]) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    (case,) = results["cases"]
    assert case["refused"] == []
    assert len(case["rows"]) == 2
    chosen: dict[str, int] = {}
    for line in results["table"]:
        (capability, kernel, *shape), parameters = read_line(line["line"])
        assert (capability, shape) == (HOPPER, [2, 128, 2 if SWEEPS[operation].codes is None else 1])
        assert set(parameters) <= set(launch_on(HOPPER, kernel, *shape)), "an entry replaces what the rule has"
        chosen |= parameters
    assert chosen in [{name: row[name] for name in chosen} for row in case["rows"]]


@pytest.mark.parametrize("operation", SWEEPS)
def test_candidates_begin_with_what_is_in_use_and_differ(operation: str) -> None:
    sweep = SWEEPS[operation]
    in_use = sweep.find_in_use(tune_launches.MODEL_SHAPES["Llama-3-8B"], launch_sweeps.torch.device("cpu"))
    candidates = list_candidates(sweep, in_use)
    assert candidates[0] == in_use
    assert len({tuple(sorted(each.items())) for each in candidates}) == len(candidates) > 10
    assert set(in_use) == {name for names in sweep.entries.values() for name in names}
    assert all(set(each) == set(in_use) for each in candidates)


def test_a_budget_that_is_used_up_leaves_what_has_been_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One candidate of one case, and its table."""
    monkeypatch.setattr(tune_launches, "load_triton_kernels", lambda device_type: None)
    monkeypatch.setattr(
        launch_sweeps, "paged_decode", lambda *arguments: launch_sweeps.paged_decode_reference(*arguments[:6])
    )
    monkeypatch.setitem(SWEEPS, "decode", dataclasses.replace(SWEEPS["decode"], sizes=((2, 20), (1, 20))))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    file = tmp_path / "tune.json"
    flags = ["decode", "--device", "cpu", "--rounds", "1", "--budget-s", "0", "--json", str(file)]
    assert tune_launches.main(flags) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert [(case["case"], len(case["rows"])) for case in results["cases"]] == [("2 x 20", 1)]
    _, parameters = read_line(results["table"][0]["line"])
    assert parameters["BLOCK_N"] == results["in_use"]["BLOCK_N"]


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
    candidates = list_candidates(SWEEPS["decode"], IN_USE)
    assert summarize([case(None)], candidates, "decode", "Llama-3-8B")["table"] == []
    summary: Any = summarize([case(None, 8.0)], candidates, "decode", "Llama-3-8B")
    launch, work = summary["table"]
    assert read_line(launch["line"])[0] == (HOPPER, "paged_decode", 4, 128, 2)
    assert read_line(work["line"]) == (
        (HOPPER, "decode_work", 4, 128, 2),
        {name: candidates[1][name] for name in ("programs", "merges")},
    )
    assert (launch["times_best"], launch["times_best_of_that_in_use"]) == (1.0, None)
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
