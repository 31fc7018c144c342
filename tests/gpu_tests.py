"""Runs the tests that need a CUDA GPU, each file in its own process, and continues after failures: `make test-gpu`.

    python -m tests.gpu_tests [--only NAME ...] [--jobs N] [--budget-s S]
    python -m tests.gpu_tests --device cpu --only silu_mul      (a trial without a GPU, in Triton's interpreter)

The runner's tests come first, then the kernels' in parallel, then two of them under compute-sanitizer. A CUDA error
ends only its own file. A file of which no test ran counts as failed, so a run without a GPU cannot pass. The
result is rewritten after each file, and each file's output is kept next to it.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from benchmarks.result_file import write_result
from benchmarks.timed_command import ROOT, exit_on_signals, run_command

RESULTS = Path("build/gpu")
FILE_TIMEOUT_S = 400.0
TEST_TIMEOUT_S = 120
LEAST_START_S = 5.0
"""No file is started with less of the budget left."""

MARK = "pytest.mark.gpu"
"""Every file with tests that need a GPU contains this."""

NEEDS_NO_GPU = ("test_compile.py", "test_interpreter_bf16.py")
"""Files in `tests/kernels/gpu` that test the compiler and the interpreter; `make test` runs them anywhere."""

MEMCHECKED = ("paged_decode", "rotate_store")
SANITIZER = "compute-sanitizer"
MEMCHECK = (SANITIZER, "--tool", "memcheck", "--error-exitcode", "3")
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is its own allocation, so that accesses beyond it are detected."""

FACTS = """
import json, torch, triton
assert torch.cuda.is_available(), "torch finds no CUDA device"
print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}))
"""

State = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class TestRun:
    """One process: the arguments of pytest, and the command that it runs under."""

    __test__ = False

    name: str
    arguments: tuple[str, ...]
    under: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """The outcome of a run. `failures`: each failed test with the first line of its error."""

    name: str
    state: State
    reason: str = ""
    num_passed: int = 0
    num_failed: int = 0
    num_skipped: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    last_lines: tuple[str, ...] = ()


def list_phases(memchecked: Sequence[str] = MEMCHECKED, device: str = "cuda") -> list[list[TestRun]]:
    """Returns the phases, whose runs are parallel: the runner, the kernels, and some kernels in the sanitizer.

    "references" are the torch references of the kernels on the device, for operations that run there without Triton.
    """
    files = sorted((ROOT / "tests/kernels/gpu").glob("test_*.py"))
    others = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path not in files]
    marked = [path for path in others if MARK in path.read_text(encoding="utf-8")]
    runner = [TestRun(_name(path), ("-m", "gpu", _relative(path))) for path in marked]
    kernels = [TestRun(_name(path), (_relative(path),)) for path in files if path.name not in NEEDS_NO_GPU]
    outside = ("--ignore", "tests/kernels/gpu", "--ignore", "tests/kernels/cpu")
    kernels.append(TestRun("references", ("-k", f"torch and {device}", *outside, "tests/kernels")))
    checked = [
        TestRun(f"{_name(path)}_memcheck", (_relative(path),), MEMCHECK) for path in files if _name(path) in memchecked
    ]
    return [runner, kernels, checked]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if a file failed or was not run in time, or 2 without a GPU."""
    options = make_parser().parse_args(arguments)
    exit_on_signals()
    facts = {"device": options.device}
    if options.device == "cuda":
        asked = run_command([sys.executable, "-c", FACTS], FILE_TIMEOUT_S, sys.stderr)
        if not asked.is_ok:
            return 2
        # Libraries may complain at the exit, after the answer.
        facts |= json.loads(next(line for line in asked.last_lines if line.startswith("{")))
    phases = [
        [run for run in phase if _is_chosen(run, options.only)]
        for phase in list_phases(options.memcheck, options.device)
    ]
    session = Session(options, facts, [run.name for phase in phases for run in phase])
    try:
        for phase in phases:
            session.run_phase(phase)
    finally:
        session.summarize()
    return session.exit_code()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: Triton's interpreter (default: cuda)")
    add("--only", nargs="+", metavar="NAME", help="files whose names, without test_, begin so (default: all)")
    about_memcheck = f"kernel test files to run in {SANITIZER}, by name without test_ (default: {' '.join(MEMCHECKED)})"
    add("--memcheck", nargs="*", default=list(MEMCHECKED), metavar="NAME", help=about_memcheck)
    add("--jobs", type=int, default=min(8, max(1, (os.cpu_count() or 1) // 2)), help="files at a time (%(default)s)")
    add("--file-timeout-s", type=float, default=FILE_TIMEOUT_S, metavar="S", help="of each file (%(default)s)")
    add("--budget-s", type=float, default=3600.0, metavar="S", help="of all: then nothing more begins (%(default)s)")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="for tests.json and logs/ (%(default)s)")
    return parser


class Session:
    """Runs phases within a budget, and writes the results after each file; those of other files stay."""

    def __init__(self, options: argparse.Namespace, facts: dict[str, str], names: Sequence[str]):
        self.findings = {name: Finding(name, "not run", "not reached") for name in names}
        self._file: Path = options.results / "tests.json"
        self._earlier: list[dict[str, Any]] = []
        if self._file.is_file():
            files = json.loads(self._file.read_text(encoding="utf-8"))["results"]["files"]
            self._earlier = [each for each in files if each["name"] not in self.findings]
        self._options = options
        self._facts = facts
        self._end_s = time.monotonic() + options.budget_s
        self._logs: Path = options.results / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def run_phase(self, runs: Sequence[TestRun]) -> None:
        """Runs a phase in parallel. Each run is reported when it ends."""
        with ThreadPoolExecutor(max(1, self._options.jobs)) as pool:
            for done in as_completed([pool.submit(self._run, run) for run in runs]):
                self._record(done.result())

    def summarize(self) -> None:
        """Prints a line for each file and each failure."""
        print(f"\n{'file':<36} {'state':<8} {'passed':>7} {'failed':>7} {'skipped':>8} {'s':>7}")
        for found in self.findings.values():
            counts = f"{found.num_passed:7} {found.num_failed:7} {found.num_skipped:8} {found.seconds:7.1f}"
            print(f"{found.name:<36} {found.state:<8} {counts}  {found.reason}")
        for found in self.findings.values():
            for failure in found.failures:
                print(f"FAILED {found.name}: {failure}")
        num_passed = sum(found.num_passed for found in self.findings.values())
        num_bad = sum(not is_good(found) for found in self.findings.values())
        where = self._facts.get("gpu", "the CPU, interpreted: this shows nothing of a GPU")
        print(f"{num_passed} tests passed on {where}; {num_bad} of {len(self.findings)} files did not pass")

    def exit_code(self) -> int:
        """Returns 0 if there were tests and all passed."""
        has_passed = any(found.num_passed for found in self.findings.values())
        return 0 if has_passed and all(map(is_good, self.findings.values())) else 1

    def _run(self, run: TestRun) -> Finding:
        left_s = self._end_s - time.monotonic()
        if left_s < LEAST_START_S:
            return Finding(run.name, "not run", "the budget was used up")
        if run.under and shutil.which(run.under[0]) is None:
            return Finding(run.name, "not run", f"{run.under[0]} is not installed")
        report = (self._logs / f"{run.name}.xml").absolute()
        report.unlink(missing_ok=True)
        pytest = ("-m", "pytest", "-v", "-W", "default", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}")
        command = [*run.under, sys.executable, *pytest, f"--junitxml={report}", *run.arguments]
        # 0 on a GPU, so that a test without a CUDA device is skipped instead of interpreted.
        environment = {"TRITON_INTERPRET": str(int(self._options.device == "cpu")), "PYTHONUNBUFFERED": "1"}
        environment |= UNCACHED if run.under else {}
        with (self._logs / f"{run.name}.log").open("w", encoding="utf-8") as log:
            outcome = run_command(command, min(left_s, self._options.file_timeout_s), log, environment)
        found = replace(read_report(report, run.name), seconds=outcome.seconds)
        if outcome.is_ok and found.num_passed:
            return replace(found, state="passed")
        # pytest returns 1 after failures, which are listed, and 5 if no test was selected.
        reason = "no test ran" if found.num_passed + found.num_failed == 0 else ""
        if not outcome.is_ok and outcome.reason not in ("exit code 1", "exit code 5"):
            reason = outcome.reason
        return replace(found, state="failed", reason=reason, last_lines=outcome.last_lines)

    def _record(self, found: Finding) -> None:
        print(f"{found.state:<8} {found.name} {found.reason}", flush=True)
        self.findings[found.name] = found
        results = {**self._facts, "files": self._earlier + [asdict(each) for each in self.findings.values()]}
        write_result(self._file, "gpu_tests", results)


def read_report(path: Path, name: str) -> Finding:
    """Returns the counts of a JUnit file, all 0 if it is missing because the process died."""
    if not path.is_file():
        return Finding(name, "failed")
    failures: list[str] = []
    num_passed = num_skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag: child for child in case}
        broken = kinds.get("failure", kinds.get("error"))
        if broken is not None:
            message = (broken.get("message") or "").split("\n", 1)[0][:300]
            failures.append(f"{case.get('name')}: {message}")
        elif "skipped" in kinds:
            num_skipped += 1
        else:
            num_passed += 1
    return Finding(name, "failed", "", num_passed, len(failures), num_skipped, failures=failures)


def is_good(found: Finding) -> bool:
    """True if it passed. A machine may lack the sanitizer; every other run is required."""
    return found.state == "passed" or (found.state == "not run" and found.reason.startswith(SANITIZER))


def _is_chosen(run: TestRun, only: Sequence[str] | None) -> bool:
    return only is None or run.name.startswith(tuple(only))


def _name(path: Path) -> str:
    return path.stem.removeprefix("test_")


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    raise SystemExit(main())
