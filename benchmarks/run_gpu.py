"""Runs the GPU benchmarks within a time budget and writes one result file: `make bench-gpu`.

    python -m benchmarks.run_gpu [--only PART ...] [--budget-s S] [--results DIR] [--list]
    python -m benchmarks.run_gpu --device cpu --quick --results DIR     (a smoke test; its numbers mean nothing)

Parts run in order of value, each as a process with its own time limit. The file is rewritten before and after each
part, and results of earlier runs stay in it. A failing part leaves its reason and its last lines and does not stop the
others. Commit first, so that the results carry a commit; without git, SLUICE_COMMIT names it.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import performance_page
from benchmarks.gpu_parts import Part, list_parts
from benchmarks.result_file import now, write_result
from benchmarks.timed_command import exit_on_signals, run_command
from tools.check_gpu import ask_driver as ask_driver_for

RESULTS = Path("benchmarks/results")
FILE = "gpu.json"
PACKAGE = "benchmarks"
"""Where the modules of parts are."""
LEAST_START_S = 20.0
"""With less of the budget left no part is started: loading alone takes longer."""

STATE_FIELDS = ("pstate", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")
"""What the driver reports of the GPU before and after each part: a throttled GPU explains a slow one."""

GPU_QUERY = "name,memory.total,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"

PartResult = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if a part failed or was not reached, 2 on bad usage."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.results == RESULTS:
        parser.error("--device cpu: give a directory with --results, for what a GPU does is kept in the default one")
    every = list_parts()
    parts = [part for part in every if not options.only or part.name.startswith(tuple(options.only))]
    if not parts:
        parser.error(f"--only {' '.join(options.only)}: no part's name begins so; --list shows them")
    if options.list:
        print("\n".join(part.name for part in parts))
        return 0
    exit_on_signals()
    results = Results(options.results / FILE, [part.name for part in every])
    if options.skip_done:
        parts = [part for part in parts if results.parts.get(part.name, {}).get("state") != "ok"]
    results.facts |= {"device": options.device, "is_quick": options.quick, "nvidia-smi": ask_driver()}
    failed = run_parts(parts, options, results)
    if options.results == RESULTS:
        performance_page.main()
    print(f"\n{len(parts) - len(failed)} of {len(parts)} parts in {results.path}")
    for name in failed:
        print(f"failed: {name}: {results.parts[name]['reason']}", file=sys.stderr)
    return 1 if failed else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--quick", action="store_true", help="the smallest case of each part")
    add("--only", nargs="+", metavar="PART", help="parts whose names begin so (default: all)")
    add("--list", action="store_true", help="print the names of the parts, in order, and run none")
    add("--skip-done", action="store_true", help="leave out parts that the result file has, without a failure")
    add("--budget-s", type=float, default=7200.0, metavar="S", help="of all parts together (default: %(default)s)")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help=f"for {FILE} (%(default)s, and the page is made)")
    return parser


class Results:
    """The result file: facts, and the parts by name in the order of `names`."""

    def __init__(self, path: Path, names: Sequence[str]):
        """Reads what earlier runs have left."""
        self.path = path
        self.facts: dict[str, Any] = {}
        self.parts: dict[str, PartResult] = {}
        self._names = names
        if path.is_file():
            self.parts = json.loads(path.read_text(encoding="utf-8"))["results"]["parts"]

    def put(self, name: str, part: PartResult) -> None:
        """Rewrites the file, which is whole at any time."""
        self.parts[name] = part
        rank = {name: index for index, name in enumerate(self._names)}
        parts = dict(sorted(self.parts.items(), key=lambda item: rank.get(item[0], len(rank))))
        write_result(self.path, "gpu", {**self.facts, "parts": parts})


def run_parts(parts: Sequence[Part], options: argparse.Namespace, results: Results) -> list[str]:
    """Runs them in order within the budget; returns the names of those that did not succeed."""
    end_s = time.monotonic() + options.budget_s
    failed: list[str] = []
    for part in parts:
        left_s = end_s - time.monotonic()
        if left_s < LEAST_START_S:
            failed.append(part.name)
            # What an earlier run has found of it is worth more than that this one has not come to it.
            if part.name not in results.parts:
                results.put(part.name, {"state": "not started", "reason": "the budget was used up"})
            continue
        print(f"\n=== {part.name} ({left_s:.0f} s left)", flush=True)
        done = run_part(part, options, min(part.timeout_s, left_s), results)
        print(f"=== {part.name}: {done['state']} {done.get('reason', '')} ({done['seconds']:.0f} s)", flush=True)
        if done["state"] != "ok":
            failed.append(part.name)
    return failed


def run_part(part: Part, options: argparse.Namespace, timeout_s: float, results: Results) -> PartResult:
    """Runs one part and puts what became of it into the results, with what it wrote even if it failed."""
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-part-") as scratch:
        file = Path(scratch) / "result.json"
        flags = ["--device", options.device, *part.flags, *(part.quick if options.quick else ())]
        command = [sys.executable, "-m", f"{PACKAGE}.{part.module}", *flags, "--json", str(file)]
        shown = shlex.join(["python", *command[1:-2]])
        running: PartResult = {
            "state": "running",
            "reason": "it did not come to an end",
            "command": shown,
            "when": now(),
        }
        results.put(part.name, running)
        environment = {"PYTHONUNBUFFERED": "1", **interpreter_setting(part, options.device)}
        gpu = {"before": ask_driver_state()}
        try:
            outcome = run_command(command, timeout_s, sys.stdout, environment)
        finally:  # also if this process is asked to end
            running |= read_written(file)
            if gpu["before"]:
                running["gpu_state"] = {**gpu, "after": ask_driver_state()}
            results.put(part.name, running)
    done: PartResult = {**running, "state": "ok", "reason": "", "seconds": outcome.seconds}
    if not outcome.is_ok:
        done |= {"state": "failed", "reason": outcome.reason, "last_lines": outcome.last_lines}
    elif "results" not in done:
        done |= {"state": "failed", "reason": "it wrote no result"}
    results.put(part.name, done)
    return done


def read_written(file: Path) -> PartResult:
    """Returns the result that a part has written so far, empty if there is none."""
    if not file.is_file():
        return {}
    written = json.loads(file.read_text(encoding="utf-8"))
    return {name: written[name] for name in ("commit", "machine", "results")}


def interpreter_setting(part: Part, device: str) -> dict[str, str]:
    """On a GPU, Triton's kernels are compiled regardless of the environment; tuning needs Triton."""
    if device == "cuda":
        return {"TRITON_INTERPRET": "0"}
    return {"TRITON_INTERPRET": "1"} if part.module == "tune_launches" else {}


def ask_driver_state() -> dict[str, str]:
    return ask_driver_for(STATE_FIELDS)


def ask_driver() -> list[str] | None:
    """Returns the driver's report about each GPU, `None` without a driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv"]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        return list(run_command(command, LEAST_START_S, nowhere).last_lines)


if __name__ == "__main__":
    raise SystemExit(main())
