"""What a KV cache on disk (--kv-disk) gains on conversations, and what it costs where nothing is asked for again.

    python -m benchmarks.bench_kv_tiers TRACE --json FILE

The gain: a server with the flag and one without get the requests of a Mooncake trace. The first half is sent as fast
as they take it, then come parts at their times, each at a load: the prompt tokens that arrive in a second are so many
times what the server computes. The KV cache has room for a tenth of the trace's different pages. The model has the
shape of the bundled one, random weights and a context of 2,048 tokens. The cost: engines of the bundled model with and
without the flag serve prompts that have nothing in common, in turns, in one process, on one thread; compared are the
times of turns that follow each other.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load, run_interruptible
from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.load.workloads import PlannedRequest, SamplingFields
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server
from benchmarks.shape_runner import configured_shape, make_config
from messages.errors import SluiceError
from messages.requests import SamplingParams
from scheduler_proc.offline import OfflineEngine
from whatif.traces import Arrival, fit_scale, read_trace, replay

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
CONTEXT, VOCAB_SIZE, PAGE_SIZE = 2048, 3000, 16
CONCURRENCY = 4
CACHE_SHARE = 0.1
START_TIMEOUT_S, RUN_TIMEOUT_S = 120.0, 300.0
NUM_CALIBRATION, CALIBRATION_TOKENS = 110, 500
DISK_GB = "8"

WARM_UP_ROUNDS = 3
TURNS = {"prompts": (24, 800, 1), "both": (32, 200, 100)}
"""Rows, tokens of each prompt and of each output of a turn."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 where a server or the trace cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", type=Path, help="a Mooncake trace, as conversation_trace.jsonl")
    add("--requests", type=int, default=1200, help="first requests of the trace (default: %(default)s)")
    add("--loads", type=float, nargs="+", default=[0.6, 1.3], help="default: %(default)s")
    add("--rounds", type=int, default=16, help="turns of each engine (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        costs = {name: compare_speed(name, options.rounds) for name in TURNS}
        gains = measure_gains(options.trace, options.requests, options.loads)
    except SluiceError as error:
        print(f"bench_kv_tiers: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "kv_tiers", {"costs": costs, "gains": gains})
    return 0


def measure_gains(trace_file: Path, num_requests: int, loads: Sequence[float]) -> dict[str, Any]:
    """Returns the times to first token of each load and side. Raises `UsageError`, `ServerUnavailableError`."""
    trace = read_trace(trace_file, num_requests)
    arrivals = list(replay(trace, fit_scale(trace, CONTEXT, 1.0), VOCAB_SIZE, seed=1))
    num_pages = int(CACHE_SHARE * count_pages(arrivals))
    shape = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8")) | {"n_positions": CONTEXT}
    with configured_shape(shape, []) as config:
        model = ["--model", config.facts.model_dir, "--tokenizer", str(BUNDLED), "--load-format", "dummy"]
        flags = [*model, "--num-pages", str(num_pages)]
        prefilled_per_s = measure_prefill(flags)
        facts = {
            "requests": len(arrivals),
            "cache_pages": num_pages,
            "prefilled_tokens_per_s": round(prefilled_per_s),
        }
        print(facts, flush=True)
        sides: dict[str, dict[str, Any]] = {}
        for name in ("without", "with"):
            with tempfile.TemporaryDirectory(prefix="sluice-kv-") as folder:
                disk = ["--kv-disk", folder, "--kv-disk-gb", DISK_GB] if name == "with" else []
                sides[name] = serve(arrivals, loads, prefilled_per_s, [*flags, *disk])
    p50s = {name: [part["ttft_ms"]["p50"] for part in side.values()] for name, side in sides.items()}
    ratios = [round(before / after, 2) for before, after in zip(p50s["without"], p50s["with"], strict=True)]
    print(f"time to first token, p50, without / with: {ratios}")
    return {**facts, "sides": sides, "ttft_p50_ratios": dict(zip(map(str, loads), ratios, strict=True))}


def count_pages(arrivals: Sequence[Arrival]) -> int:
    """Returns how many different pages the prompts fill."""
    ends = {
        hash(tuple(one.prompt_ids[:end]))
        for one in arrivals
        for end in range(PAGE_SIZE, len(one.prompt_ids), PAGE_SIZE)
    }
    return len(ends)


def measure_prefill(flags: Sequence[str]) -> float:
    """Returns how many tokens of different prompts a server computes in a second."""
    rng = random.Random(2)
    planned = [
        PlannedRequest(rng.choices(range(3, VOCAB_SIZE), k=CALIBRATION_TOKENS), 1) for _ in range(NUM_CALIBRATION)
    ]
    with started_server(flags, START_TIMEOUT_S) as (_, target):
        run(target, planned[:10], is_timed=False)
        begin_s = time.monotonic()
        run(target, planned[10:], is_timed=False)
        return (NUM_CALIBRATION - 10) * CALIBRATION_TOKENS / (time.monotonic() - begin_s)


def serve(arrivals: Sequence[Arrival], loads: Sequence[float], prefilled_per_s: float, flags: Sequence[str]) -> Any:
    """Returns what a new server makes of the second half of the requests, by load, after it has served the first."""
    num_first = len(arrivals) // 2
    num_each = (len(arrivals) - num_first) // len(loads)
    found: dict[str, Any] = {}
    with started_server(flags, START_TIMEOUT_S) as (_, target):
        run(target, [PlannedRequest(one.prompt_ids, 1) for one in arrivals[:num_first]], is_timed=False)
        for index, load in enumerate(loads):
            part = arrivals[num_first + index * num_each :][:num_each]
            duration_s = sum(len(one.prompt_ids) for one in part) / (load * prefilled_per_s)
            speed = (part[-1].at_s - part[0].at_s) / duration_s
            planned = [
                PlannedRequest(one.prompt_ids, one.num_output, (one.at_s - part[0].at_s) / speed) for one in part
            ]
            found[str(load)] = summarize(run(target, planned), len(planned))
            print(f"load {load:g}, {' '.join(flags[6:])}: {found[str(load)]}", flush=True)
    return found


def summarize(load: Load, num_planned: int) -> dict[str, Any]:
    """Raises `ServerUnavailableError` where a request has failed."""
    results = [result for result in load.measurement.results if result.outcome == "ok"]
    if len(results) < num_planned:
        raise ServerUnavailableError(f"{num_planned - len(results)} requests did not end well")
    ttft_ms = [(one.arrivals_ns[0] - one.begin_ns) / 1e6 for one in results]
    usages = [one.usage for one in results if one.usage is not None]
    num_cached, num_prompt = sum(one.cached_tokens for one in usages), sum(one.prompt_tokens for one in usages)
    return {
        "ttft_ms": {f"p{part}": round(float(np.percentile(ttft_ms, part)), 1) for part in (50, 90, 99)},
        "cached_share": round(num_cached / num_prompt, 3),
        "seconds": round(load.measurement.seconds, 1),
    }


def run(target: Target, planned: Sequence[PlannedRequest], *, is_timed: bool = True) -> Load:
    """Sends the requests, at their times or a few at once, and returns when all have ended."""
    load = Load(target, SamplingFields(ignore_eos=True), Limits(len(planned), RUN_TIMEOUT_S))
    run_interruptible(load, load.open_loop(planned) if is_timed else load.closed_loop(planned, CONCURRENCY))
    return load


def compare_speed(kind: str, num_rounds: int) -> dict[str, Any]:
    """Returns with / without of turns in which no page is asked for again: wall time and CPU time, median and best."""
    rows, num_prompt, num_output = TURNS[kind]
    flags = ["--device", "cpu", "--cpu-threads", "1", "--num-pages", str(rows * (num_prompt + num_output) // PAGE_SIZE)]
    config = make_config(BUNDLED, flags)
    times: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    params = [SamplingParams(num_output, temperature=0.0, ignore_eos=True)] * rows
    with tempfile.TemporaryDirectory(prefix="sluice-kv-") as folder:
        disk = make_config(BUNDLED, [*flags, "--kv-disk", folder, "--kv-disk-gb", DISK_GB])
        engines = {"without": OfflineEngine(config), "with": OfflineEngine(disk)}
        for seed in range(WARM_UP_ROUNDS + num_rounds):
            rng = random.Random(seed)
            prompts = [rng.choices(range(3, VOCAB_SIZE), k=num_prompt) for _ in range(rows)]
            for name in list(engines)[:: 1 if seed % 2 else -1]:
                begin_s, begin_cpu_s = time.monotonic(), time.process_time()
                engines[name].generate(prompts, params)
                times[name].append((time.monotonic() - begin_s, time.process_time() - begin_cpu_s))
        gauges = engines["with"].gauges
        for engine in engines.values():
            engine.close()
    found: dict[str, Any] = {name: gauges[name] for name in ("pages_evicted", "tier_skipped_pages", "disk_pages")}
    for index, what in enumerate(("seconds", "cpu_seconds")):
        pairs = [(one[index], other[index]) for one, other in zip(times["without"], times["with"], strict=True)]
        pairs = pairs[WARM_UP_ROUNDS:]
        best = min(after for _, after in pairs) / min(before for before, _ in pairs)
        ratio = statistics.median(after / before for before, after in pairs)
        found[what] = {"ratio": round(ratio, 4), "ratio_of_best": round(best, 4)}
    print(f"cost, {kind}: {found}", flush=True)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
