"""What a KV cache on disk (--kv-disk) gains on conversations, and what it costs where nothing is asked for again.

    python -m benchmarks.bench_kv_tiers TRACE --json FILE

The gain: a scheduler with the flag and one without serve the requests of a Mooncake trace at their times, at each load:
the prompt tokens that arrive in a second are so many times what the model computes. The KV cache has room for a tenth
of the trace's different pages; the second half of the requests counts. The trace tells times in steps of three seconds:
requests of one time are spread over the step or, with --as-recorded, arrive at once. The model has the shape of the
bundled one, random weights and a context of 2,048 tokens. The cost: engines of the bundled model with and without the
flag serve prompts that have nothing in common, in turns; compared are the times of turns that follow each other.

The two schedulers of the gain run at the same time, each in a process with one thread of the model: a machine that
slows down slows both. The clock of each is the CPU time of its process, threads that read and write among it, and the
time in which nothing is done but to wait for pages: what else the machine does changes no queue, which near the limit
would hide all else. What the model computes is measured in two processes, too.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_struct

from benchmarks.result_file import ROOT, write_result
from benchmarks.shape_runner import configured_shape, make_config
from messages.config import Config
from messages.errors import SluiceError
from messages.requests import SamplingParams
from scheduler_proc.computing.loading.load_runner import load_runner
from scheduler_proc.computing.tiers.tiered_pages import TieredPages
from scheduler_proc.offline import OfflineEngine, no_report
from scheduler_proc.step_times import StepTimes
from whatif.drive import SkippingClock
from whatif.drive import serve as drive
from whatif.traces import Arrival, TraceRequest, fit_scale, read_trace, replay

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
CONTEXT, VOCAB_SIZE, PAGE_SIZE = 2048, 3000, 16
CACHE_SHARE = 0.1
NUM_CALIBRATION, CALIBRATION_TOKENS = 40, 500
DISK_GB = "8"
WAIT_S = 5.0

WARM_UP_ROUNDS = 9
"""Until it is known that nothing is asked for again."""
TURNS = {"prompts": (24, 400, 1), "both": (24, 300, 50)}
"""Rows, tokens of each prompt and of each output of a turn."""


class CpuClock(SkippingClock):
    """CPU time of the process; while nothing runs but loads of `store`, the time on the wall."""

    def __init__(self, store: TieredPages | None):
        super().__init__(time.process_time)
        self._store = store
        self._has_pages = threading.Event()
        if store is not None:
            store.wake = self._has_pages.set

    def wait_until(self, at_s: float) -> None:
        if self._store is None or not self._store.has_loads:
            super().wait_until(at_s)
            return
        begin_s = time.monotonic()
        self._has_pages.wait(WAIT_S)
        self._has_pages.clear()
        super().wait_until(self() + time.monotonic() - begin_s)


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 where the trace cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", type=Path, help="a Mooncake trace, as conversation_trace.jsonl")
    add("--requests", type=int, default=800, help="first requests of the trace (default: %(default)s)")
    add("--loads", type=float, nargs="+", default=[0.8], help="default: %(default)s")
    add("--as-recorded", action="store_true", help="requests of one time of the trace arrive at once")
    add("--repeats", type=int, default=3, help="of each load (default: %(default)s)")
    add("--rounds", type=int, default=10, help="turns of each engine (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        gains = measure_gains(options.trace, options.requests, options.loads, options.as_recorded, options.repeats)
        costs = {name: compare_speed(name, options.rounds) for name in TURNS}
    except SluiceError as error:
        print(f"bench_kv_tiers: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "kv_tiers", {"costs": costs, "gains": gains})
    return 0


def measure_gains(
    trace_file: Path, num_requests: int, loads: Sequence[float], as_recorded: bool, num_repeats: int
) -> dict[str, Any]:
    """Returns the times to first token of each load and side. Raises `UsageError`."""
    trace = read_trace(trace_file, num_requests)
    trace = trace if as_recorded else spread_steps(trace)
    arrivals = list(replay(trace, fit_scale(trace, CONTEXT, 1.0), VOCAB_SIZE, seed=1))
    num_pages, num_different = sum(len(one.prompt_ids) // PAGE_SIZE for one in arrivals), count_pages(arrivals)
    shape = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8")) | {"n_positions": CONTEXT}
    flags = ["--device", "cpu", "--cpu-threads", "1", "--num-pages", str(int(CACHE_SHARE * num_different))]
    with configured_shape(shape, flags) as config:
        prefilled_per_s = statistics.mean(at_once([(measure_prefill, config)] * 2))
        facts = {
            "requests": len(arrivals),
            "arrivals": "as recorded" if as_recorded else "spread",
            "cache_pages": int(CACHE_SHARE * num_different),
            "share_asked_for_again": round(1 - num_different / num_pages, 3),
            "prefilled_tokens_per_s": round(prefilled_per_s),
        }
        print(facts, flush=True)
        found: dict[str, dict[str, Any]] = {}
        for load in loads:
            timed = at_load(arrivals, load * prefilled_per_s)
            runs = [serve_both(timed, config, index % 2 == 1) for index in range(num_repeats)]
            ratios = [run["without"]["ttft_ms"]["p50"] / run["with"]["ttft_ms"]["p50"] for run in runs]
            found[str(load)] = {"runs": runs, "ttft_p50_ratio": round(statistics.median(ratios), 2)}
            print(f"load {load:g}: {found[str(load)]}", flush=True)
    return {**facts, "loads": found}


def serve_both(arrivals: Sequence[Arrival], config: Config, is_swapped: bool) -> dict[str, dict[str, Any]]:
    """Returns what schedulers without and with a disk make of the requests at the same time."""
    with tempfile.TemporaryDirectory(prefix="sluice-kv-") as folder:
        cache = replace_struct(config.cache, kv_disk=folder, kv_disk_gb=float(DISK_GB))
        configs = {"without": config, "with": replace_struct(config, cache=cache)}
        order = list(configs)[:: -1 if is_swapped else 1]
        return dict(zip(order, at_once([(serve, arrivals, configs[name]) for name in order]), strict=True))


def at_once(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Makes the calls, each a function and its arguments, at the same time in processes of their own."""
    with ProcessPoolExecutor(len(calls), get_context("spawn")) as processes:
        return [future.result() for future in [processes.submit(*call) for call in calls]]


def spread_steps(trace: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Returns the requests with those of one time spread evenly until the next time, which the last have none of."""
    spread: list[TraceRequest] = []
    groups = [list(group) for _, group in itertools.groupby(trace, lambda one: one.at_s)]
    for group, later in itertools.zip_longest(groups, groups[1:]):
        step_s = later[0].at_s - group[0].at_s if later else 0.0
        spread += [replace(one, at_s=one.at_s + step_s * index / len(group)) for index, one in enumerate(group)]
    return spread


def count_pages(arrivals: Sequence[Arrival]) -> int:
    """Returns how many different pages the prompts fill."""
    ends = {
        hash(tuple(one.prompt_ids[:end]))
        for one in arrivals
        for end in range(PAGE_SIZE, len(one.prompt_ids), PAGE_SIZE)
    }
    return len(ends)


def at_load(arrivals: Sequence[Arrival], tokens_per_s: float) -> list[Arrival]:
    """Returns them at times at which so many prompt tokens arrive in a second."""
    duration_s = sum(len(one.prompt_ids) for one in arrivals) / tokens_per_s
    speed = (arrivals[-1].at_s - arrivals[0].at_s) / duration_s
    return [replace(one, at_s=(one.at_s - arrivals[0].at_s) / speed) for one in arrivals]


def measure_prefill(config: Config) -> float:
    """Returns how many tokens of different prompts are computed in a second of CPU time."""
    rng = random.Random(2)
    arrivals = [
        Arrival(rng.choices(range(3, VOCAB_SIZE), k=CALIBRATION_TOKENS), 1, 0.0) for _ in range(NUM_CALIBRATION)
    ]
    runner = load_runner(config, no_report)
    served = drive(arrivals, config, runner, CpuClock(None), StepTimes())
    return NUM_CALIBRATION * CALIBRATION_TOKENS / float(served.last_s.max())


def serve(arrivals: Sequence[Arrival], config: Config) -> dict[str, Any]:
    """Returns what a new scheduler makes of the requests; times are of the second half."""
    runner = load_runner(config, no_report)
    begin_s = time.process_time()
    served = drive(arrivals, config, runner, CpuClock(runner.page_store), StepTimes())
    cpu_s = time.process_time() - begin_s
    if runner.page_store is not None:
        runner.page_store.close()
    half = len(arrivals) // 2
    ttft_ms = 1e3 * (served.first_s - served.arrived_s)[half:]
    gauges = served.gauges
    names = ("pages_evicted", "tier_skipped_pages", "disk_pages", "disk_hit_pages", "preemptions", "steps")
    return {
        "ttft_ms": {f"p{part}": round(float(np.percentile(ttft_ms, part)), 1) for part in (50, 90, 99)},
        "cached_share": round(gauges["prefix_hit_tokens"] / gauges["prompt_tokens"], 3),
        "cpu_seconds": round(cpu_s, 1),
        **{name: round(gauges[name]) for name in names if name in gauges},
    }


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
