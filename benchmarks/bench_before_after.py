"""Two checkouts in turns: new servers of the same age, their speed, and what the scheduler's memory costs them.

    python -m benchmarks.bench_before_after --before DIR --json FILE
    python -m benchmarks.bench_before_after --before . --before-flags='--kv-populate eager'

Each turn starts one server of random weights, leaves it alone for `--age-s`, and runs the workloads of
`benchmarks/load/batch_client.py` once each. Sides alternate, and so does the side that begins. CPU times and faults are
the scheduler's, during the workload. Five pairs take about 8 minutes.
"""

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from benchmarks.load.batch_client import REST_S, WORKLOADS, Server, seconds_of
from benchmarks.load.connection import Target
from benchmarks.load.server_facts import get
from benchmarks.model_shapes import SHAPES, served_shape
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import ServerProcess, memory, tree_pids, watch
from messages.errors import SluiceError

SIDES = ("before", "after")
TIMEOUT_S = 600.0
IDLE_S = 4.0
"""The last seconds before the workloads, in which an idle server uses no CPU."""


class Use(msgspec.Struct, frozen=True):
    """What the scheduler has used: CPU seconds, and page faults without input. `others_s`: CPU of other processes."""

    user_s: float
    system_s: float
    minor_faults: int
    others_s: float


class Run(msgspec.Struct, frozen=True):
    """One workload on one server."""

    seconds: float
    use: Use


class Turn(msgspec.Struct, frozen=True):
    """One server. `idle_mib`: the memory (PSS) of all processes before the workloads; `used_mib`: after them."""

    idle_mib: float
    idle_percent_of_a_core: float
    used_mib: float
    runs: dict[str, Run]


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--before", type=Path, required=True, metavar="DIR", help="checkout of the code before; . differs in flags only"
    )
    for side in SIDES:
        add(f"--{side}-flags", default="", help=f"more flags of the servers {side}")
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--tokenizer", type=Path, default=Path("../shared/tokenizers/gpt2"), help="a directory (default: %(default)s)")
    add("--cache-gb", type=float, default=4.0, help="of each server (default: %(default)s)")
    add("--age-s", type=float, default=20.0, help="since readiness, before the workloads (default: %(default)s)")
    add("--pairs", type=int, default=5, help="turns of each side (default: %(default)s)")
    add("--workloads", nargs="+", choices=WORKLOADS, default=["W1", "W2", "W3"], help="default: W1 W2 W3")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    roots = {"before": options.before.resolve(), "after": ROOT}
    try:
        turns, defaults = run(options, roots)
    except SluiceError as error:
        print(f"bench_before_after: {error}", file=sys.stderr)
        return 1
    result = {"shape": options.shape, "cache_gb": options.cache_gb, "age_s": options.age_s, "default_idle": defaults}
    result |= {f"{side}_flags": vars(options)[f"{side}_flags"] for side in SIDES}
    result |= {"summary": summarize(turns), "turns": turns}
    print_summary(result)
    if options.json:
        write_result(options.json, "before_after", result)
    return 0


def run(options: argparse.Namespace, roots: dict[str, Path]) -> tuple[dict[str, list[Turn]], dict[str, Turn]]:
    """Returns the turns of each side, and an idle server of each without flags. Raises `SluiceError`."""
    turns: dict[str, list[Turn]] = {side: [] for side in SIDES}
    vocab_size = int(str(SHAPES[options.shape]["vocab_size"]))
    with ExitStack() as stack:
        flags = stack.enter_context(served_shape(SHAPES[options.shape], options.tokenizer))
        flags += ["--kv-cache-memory-gb", str(options.cache_gb), "--log-level", "warning"]
        flags += ["--speculative", "none"]  # what random weights write repeats itself
        all_flags = {side: [*flags, *shlex.split(vars(options)[f"{side}_flags"])] for side in SIDES}
        for side in SIDES:  # builds the kernels
            measure(roots[side], all_flags[side], 0.0, {})
        for index in range(options.pairs):
            for side in SIDES if index % 2 else SIDES[::-1]:
                seed = 1000 * index
                requests = {
                    name: WORKLOADS[name].requests(vocab_size, seed + number)
                    for number, name in enumerate(options.workloads)
                }
                turns[side].append(measure(roots[side], all_flags[side], options.age_s, requests))
                print(f"{side}: {describe(turns[side][-1])}", flush=True)
        defaults = {side: measure(roots[side], [], options.age_s, {}) for side in SIDES}
    return turns, defaults


def measure(root: Path, flags: Sequence[str], age_s: float, requests: dict[str, list]) -> Turn:
    """Returns the figures of a new server of the checkout at `root`. Raises `SluiceError`."""
    server = ServerProcess(flags, None if root == ROOT else root)
    try:
        target = replace(server.wait_until_ready(TIMEOUT_S), timeout_s=TIMEOUT_S)
        time.sleep(max(0.0, age_s - IDLE_S))
        idle = watch(server.pid, min(age_s, IDLE_S))
        idle_mib = total_mib(server)
        runs: dict[str, Run] = {}
        for name, planned in requests.items():
            scheduler = scheduler_pid(target)
            before = usage(scheduler, server.pid)
            seconds = seconds_of(Server(target), planned, WORKLOADS[name].concurrency)
            after = usage(scheduler, server.pid)
            parts = {field: round(getattr(after, field) - getattr(before, field), 3) for field in Use.__struct_fields__}
            runs[name] = Run(round(seconds, 3), Use(**parts))
            time.sleep(REST_S)
        return Turn(idle_mib, idle.percent_of_a_core, total_mib(server), runs)
    finally:
        server.stop()


def total_mib(server: ServerProcess) -> float:
    return round(sum(process.pss_mib for process in memory(server.pid)), 1)


def scheduler_pid(target: Target) -> int:
    return int(msgspec.json.decode(get(target, "/health")[1])["processes"]["scheduler"]["pid"])


def usage(pid: int, root: int) -> Use:
    """Returns what process `pid` has used so far, and the others of the tree below `root`."""
    times = {each: psutil.Process(each).cpu_times() for each in tree_pids(root)}
    others_s = sum(each.user + each.system for other, each in times.items() if other != pid)
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return Use(times[pid].user, times[pid].system, int(fields[7]), others_s)


def describe(turn: Turn) -> str:
    runs = (
        f"{name} {run.seconds:.2f} s ({run.use.user_s:.2f} user, {run.use.system_s:.2f} system, "
        f"{run.use.minor_faults} faults)"
        for name, run in turn.runs.items()
    )
    return ", ".join([f"idle {turn.idle_mib:.0f} MiB", *runs])


Figures = dict[str, float]


def summarize(turns: dict[str, list[Turn]]) -> dict[str, dict[str, Figures]]:
    """Returns medians by workload and side; `ratio`: the median of after / before, of turns right after each other."""
    summary: dict[str, dict[str, Figures]] = {}
    for name in turns["after"][0].runs:
        runs = {side: [turn.runs[name] for turn in turns[side]] for side in SIDES}
        medians = {side: _medians(runs[side]) for side in SIDES}
        pairs = list(zip(runs["before"], runs["after"], strict=True))
        ratios = {
            "seconds": statistics.median(after.seconds / before.seconds for before, after in pairs),
            "cpu": statistics.median(_cpu_s(after) / max(1e-9, _cpu_s(before)) for before, after in pairs),
        }
        summary[name] = {**medians, "ratio": {key: round(value, 4) for key, value in ratios.items()}}
    summary["idle"] = {
        side: {
            "mib": statistics.median(turn.idle_mib for turn in turns[side]),
            "percent_of_a_core": statistics.median(turn.idle_percent_of_a_core for turn in turns[side]),
            "mib_after_load": statistics.median(turn.used_mib for turn in turns[side]),
        }
        for side in SIDES
    }
    return summary


def _medians(runs: Sequence[Run]) -> Figures:
    rows = [{"seconds": run.seconds, **msgspec.structs.asdict(run.use)} for run in runs]
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def _cpu_s(run: Run) -> float:
    return run.use.user_s + run.use.system_s


def print_summary(result: dict) -> None:
    for name, sides in result["summary"].items():
        for side, figures in sides.items():
            print(f"{name:5} {side:7} " + "  ".join(f"{key} {value:g}" for key, value in figures.items()))
    for side, turn in result["default_idle"].items():
        print(f"default server {side}: {turn.idle_mib:.0f} MiB, {turn.idle_percent_of_a_core:.2f} % of a core")


if __name__ == "__main__":
    raise SystemExit(main())
