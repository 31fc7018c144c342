"""The gain of weights that outlive a scheduler (--share-weights) and of a standby process (--standby), on a CPU.

    python -m benchmarks.experiments.restarts_0065.bench_restart --json FILE

The scheduler is killed under streams in servers with both, without the standby, and without either; all keep the KV
cache. Then measures the memory of two engines with and without shared weights, and of the standby: `Pss` of
/proc/PID/smaps_rollup, split into shared and private memory.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bench_recovery import Recovery, measure, process_status, standby_is_ready
from benchmarks.load.connection import Target
from benchmarks.model_shapes import SHAPES, configured_shape
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server
from messages.engine_names import SCHEDULER, engine_name
from messages.errors import SluiceError

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
SIDES = {
    "weights and standby": [],
    "weights": ["--no-standby"],
    "neither": ["--no-standby", "--no-share-weights"],
}
START_TIMEOUT_S = 300.0
MEMORY_FIELDS = ("Rss", "Pss", "Pss_Shmem")


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kills", type=int, default=3, help="in each server (default: %(default)s)")
    add("--shape", choices=SHAPES, help="a model of this shape with random weights (default: the bundled model)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        if options.shape:
            with configured_shape(SHAPES[options.shape], []) as config:
                model = ["--model", config.facts.model_dir, "--tokenizer", str(BUNDLED), "--load-format", "dummy"]
                results = measure_all(model, options.kills)
        else:
            results = measure_all([], options.kills)
    except SluiceError as error:
        print(f"bench_restart: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "restart", {"shape": options.shape or "bundled", **results})
    return 0


def measure_all(model: list[str], num_kills: int) -> dict[str, Any]:
    """Returns kills and memory. Raises `ServerUnavailableError`."""
    kills: dict[str, Any] = {}
    for side, flags in SIDES.items():
        kills[side] = measure_kills([*model, *flags], num_kills)
        print(f"{side}: {kills[side]}", flush=True)
    memory: dict[str, Any] = {}
    for side, flags in (("shared", []), ("not shared", ["--no-share-weights"])):
        with started_server([*model, *flags, "--data-parallel", "2"], START_TIMEOUT_S) as (_, target):
            memory[side] = [memory_mib(target, engine_name(engine)) for engine in (1, 2)]
        print(f"memory in MiB of two engines, weights {side}: {memory[side]}", flush=True)
    return {"kills": kills, "memory_mib": memory}


def measure_kills(flags: list[str], num_kills: int) -> dict[str, Any]:
    """Kills the scheduler of a new server. Raises `ServerUnavailableError`."""
    with started_server([*flags, "--max-restarts-per-min", "1000"], START_TIMEOUT_S) as (server, target):
        start_s = round(server.log[-1][0], 2)
        has_standby = "--no-standby" not in flags
        kills = [SCHEDULER] * num_kills
        recoveries, _ = uvloop.run(measure(server, target, kills, has_standby, replaces=False))
        standby = {}
        if has_standby:
            uvloop.run(standby_is_ready(target))
            standby = {"standby_mib": memory_mib(target, f"{SCHEDULER}.next")}
    return {"start_s": start_s, **standby, **summary(recoveries)}


def summary(recoveries: list[Recovery]) -> dict[str, Any]:
    """Returns medians of the seconds from the kill, and the longest pause of a stream."""
    pauses_s = [one.stream_pause_s for one in recoveries if one.stream_pause_s is not None]
    return {
        "ready_s": round(statistics.median(one.ready_s for one in recoveries), 2),
        "new_request_s": round(statistics.median(one.new_request_s for one in recoveries), 2),
        "stream_pause_s": {"median": round(statistics.median(pauses_s), 2), "longest": round(max(pauses_s), 2)},
    }


def memory_mib(target: Target, process: str) -> dict[str, int]:
    """Returns the resident memory of a process, and its part of what several have."""
    text = Path(f"/proc/{process_status(target, process)['pid']}/smaps_rollup").read_text(encoding="ascii")
    fields = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
    return {name.lower(): int(fields[name]) // 1024 for name in MEMORY_FIELDS}


if __name__ == "__main__":
    raise SystemExit(main())
