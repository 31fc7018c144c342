"""`make test-gpu` without a GPU: the files it runs, their order, and its reports of files that fail, die or hang."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_tests
from tests.gpu_tests import MEMCHECKED, ROOT, TestRun, list_phases

PASSES = "def test_one(): pass\ndef test_two(): pass\n"
FAILS = "def test_one(): pass\ndef test_two(): assert 1 + 1 == 3, 'sums'\n"
SKIPS = "import pytest\n\n@pytest.mark.skip(reason='no device')\ndef test_one(): pass\n"
DIES = "import os, signal\n\ndef test_one(): pass\ndef test_two(): os.kill(os.getpid(), signal.SIGSEGV)\n"
HANGS = "import time\n\ndef test_one(): time.sleep(600)\n"


@pytest.fixture(autouse=True)
def one_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pytest processes load only the plugin that they need, which takes a third of the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout")


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], *flags: str) -> tuple[int, list[Any]]:
    """Runs files with these contents. Returns the exit code and the result of each."""
    runs: list[TestRun] = []
    for name, text in files.items():
        path = tmp_path / f"test_{name}.py"
        path.write_text(text, encoding="utf-8")
        runs.append(TestRun(name, ("-c", os.devnull, "--rootdir", str(tmp_path), str(path))))
    monkeypatch.setattr(gpu_tests, "list_phases", lambda memchecked, device: [runs])
    monkeypatch.setattr(gpu_tests, "exit_on_signals", lambda: None)
    code = gpu_tests.main(["--device", "cpu", "--jobs", "2", "--results", str(tmp_path / "out"), *flags])
    result = json.loads((tmp_path / "out/tests.json").read_text(encoding="utf-8"))["results"]
    assert result["device"] == "cpu"
    return code, result["files"]


def test_it_goes_on_after_files_that_fail_or_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"dies": DIES, "fails": FAILS, "skips": SKIPS, "passes": PASSES}
    code, found = run(tmp_path, monkeypatch, files)
    assert code == 1
    by_name = {each["name"]: each for each in found}
    assert list(by_name) == list(files)
    states = {name: (each["state"], each["reason"]) for name, each in by_name.items()}
    assert states == {
        "dies": ("failed", "killed by SIGSEGV"),
        "fails": ("failed", ""),
        "skips": ("failed", "no test ran"),
        "passes": ("passed", ""),
    }
    fails = by_name["fails"]
    assert (fails["num_passed"], fails["num_failed"]) == (1, 1)
    assert fails["failures"] == ["test_two: AssertionError: sums"]
    assert any("test_two" in line for line in by_name["dies"]["last_lines"]), "which test died is told"
    assert "def test_two" not in (tmp_path / "out/logs/passes.log").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert "FAILED fails: test_two: AssertionError: sums" in printed
    assert "3 of 4 files did not pass" in printed


def test_files_that_hang_are_stopped_and_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = run(tmp_path, monkeypatch, dict.fromkeys("abc", HANGS), "--file-timeout-s", "2")
    assert code == 1
    assert [(each["state"], each["reason"]) for each in found] == [("failed", "stopped after 2 s")] * 3


def test_what_the_budget_does_not_reach_is_named_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = run(tmp_path, monkeypatch, {"passes": PASSES}, "--budget-s", "0")
    assert code == 1
    assert [(each["state"], each["reason"]) for each in found] == [("not run", "the budget was used up")]


def test_files_that_pass_are_a_success_and_a_name_that_nothing_has_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch, {"passes": PASSES})[0] == 0
    assert gpu_tests.main(["--device", "cpu", "--only", "nothing", "--results", str(tmp_path)]) == 1


def test_results_of_other_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, {"one": FAILS, "two": PASSES})
    code, found = run(tmp_path, monkeypatch, {"one": PASSES})
    assert code == 0
    assert {each["name"]: each["state"] for each in found} == {"one": "passed", "two": "passed"}


def test_a_sanitizer_that_is_not_there_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "test_one.py"
    path.write_text(PASSES, encoding="utf-8")
    plain = TestRun("one", ("-c", os.devnull, "--rootdir", str(tmp_path), str(path)))
    monkeypatch.setattr(
        gpu_tests,
        "list_phases",
        lambda memchecked, device: [[plain], [TestRun("one_memcheck", plain.arguments, gpu_tests.MEMCHECK)]],
    )
    monkeypatch.setattr(gpu_tests, "exit_on_signals", lambda: None)
    assert gpu_tests.main(["--device", "cpu", "--results", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out/tests.json").read_text(encoding="utf-8"))["results"]["files"]
    assert [each["reason"] for each in found] == ["", "compute-sanitizer is not installed"]


def test_the_runner_comes_first_and_the_sanitizer_last() -> None:
    runner, kernels, checked = list_phases()
    assert [run.name for run in runner] == ["forward_passes_on_gpu", "logits_on_gpu"]
    names = [run.name for run in kernels]
    assert {"paged_decode", "rotate_store", "sampler", "references"} <= set(names)
    assert not {"compile", "interpreter_bf16", "sanitizers", "capture"} & set(names)
    assert [run.name for run in checked] == ["paged_decode_memcheck", "rotate_store_memcheck"]
    assert len(checked) == len(MEMCHECKED)
    assert [run.name for run in list_phases(["sample"])[2]] == ["sample_memcheck"]
    assert all((ROOT / run.arguments[-1]).exists() for phase in (runner, kernels, checked) for run in phase)


@pytest.mark.skipif(gpu_tests.shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_nothing_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_tests"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert "torch finds no CUDA device" in done.stderr


def test_on_a_gpu_nothing_is_interpreted_and_the_result_names_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries may write more after the facts."""
    path = tmp_path / "test_one.py"
    path.write_text("import os\n\ndef test_one(): assert os.environ['TRITON_INTERPRET'] == '0'\n", encoding="utf-8")
    one = TestRun("one", ("-c", os.devnull, "--rootdir", str(tmp_path), str(path)))
    monkeypatch.setattr(gpu_tests, "FACTS", """print('{"gpu": "a card"}'); print("nanobind: leaked 3 functions")""")
    monkeypatch.setattr(gpu_tests, "list_phases", lambda memchecked, device: [[one]])
    monkeypatch.setattr(gpu_tests, "exit_on_signals", lambda: None)
    assert gpu_tests.main(["--results", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out/tests.json").read_text(encoding="utf-8"))["results"]
    assert (results["device"], results["gpu"]) == ("cuda", "a card")
    assert "1 tests passed on a card; 0 of 1 files did not pass" in capsys.readouterr().out
