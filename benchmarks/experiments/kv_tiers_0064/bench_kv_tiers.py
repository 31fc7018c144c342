"""The gain of a KV cache on disk (--kv-disk) on conversations, and its cost if no prompt repeats.

    python -m benchmarks.experiments.kv_tiers_0064.bench_kv_tiers TRACE --json FILE

Gain: schedulers with and without the flag serve one in twelve conversations of a Mooncake trace. Sampling whole
conversations keeps the trace's share of repeated blocks, as hash sampling does for miss ratio curves (Waldspurger et
al., SHARDS, FAST 2015). The KV cache holds a tenth of the distinct pages. Requests arrive in the trace's order and
rhythm; a load of 1 is the rate that a scheduler without the flag completes when all requests wait from the start. Only
the second half counts. A third scheduler has a disk without cost: its clock excludes the CPU time of the page store, so
it shows the upper bound of any tier.

The model has random weights and the shape of Qwen2-0.5B with a twelfth of its layers and vocabulary, so computing and
keeping a page cost the same relative to each other as in the whole model. `--shape llama-135m --layers 6` is
SmolLM2-135M, which has six times as much K and V per weight.

The schedulers run at the same time on one core, in processes with one model thread each, so a slow machine slows all of
them. Each clock is the CPU time of the process, including its I/O threads, plus the time spent waiting only for pages.

Cost: engines of the bundled model with and without the flag serve prompts without common parts, in turns, and
consecutive turns are compared. Several pairs run in separate processes, because the placement of memory makes even
engines with equal flags differ.
"""

import argparse
import gc
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_struct

from benchmarks.model_shapes import LAYER_COUNTS, SHAPES, configured_shape, make_config, make_shape
from benchmarks.result_file import ROOT, write_result
from extras.whatif.drive import SkippingClock
from extras.whatif.drive import serve as drive
from extras.whatif.traces import Arrival, TraceRequest, fit_scale, read_trace, replay
from messages.config.server import Config
from messages.errors import SluiceError, UsageError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.tiers.tiered_pages import TieredPages
from scheduler_proc.offline import OfflineEngine, no_report
from scheduler_proc.step_times import StepTimes

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
CONTEXT, VOCAB_SIZE, PAGE_SIZE = 1536, 3000, 16
CACHE_SHARE = 0.1
DISK_GB = "8"
WAIT_S = 5.0
SIDES: tuple[str, ...] = ("without", "with", "at no cost")

WARM_UP_ROUNDS = 16
"""Until it is known that nothing is asked for again."""
TURNS = {"prompts": (24, 400, 1), "both": (24, 300, 50)}
"""Rows, tokens of each prompt and of each output of a turn."""


class CpuClock(SkippingClock):
    """CPU time from `source`; wall time while only loads of `store` run."""

    def __init__(self, store: TieredPages | None, source: Callable[[], float]):
        super().__init__(source)
        self._store = store
        self._has_pages = threading.Event()
        if store is not None:
            store.wake = self._has_pages.set

    def wait_until(self, at_s: float) -> None:
        if self._store is None or not self._store._loads:
            super().wait_until(at_s)
            return
        begin_s = time.monotonic()
        self._has_pages.wait(WAIT_S)
        self._has_pages.clear()
        super().wait_until(self() + time.monotonic() - begin_s)


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if the trace cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", type=Path, help="a Mooncake trace, as conversation_trace.jsonl")
    add(
        "--one-in",
        type=int,
        default=12,
        help="serve one in this many conversations (default: %(default)s)",
    )
    add("--loads", type=float, nargs="+", default=[0.9, 1.0], help="default: %(default)s")
    add("--repeats", type=int, default=2, help="of each load (default: %(default)s)")
    add("--pairs", type=int, default=6, help="of engines, for the cost (default: %(default)s)")
    add("--rounds", type=int, default=6, help="turns of each engine (default: %(default)s)")
    add("--shape", choices=SHAPES, default="qwen2-0.5b", help="of the model for the gain (default: %(default)s)")
    add("--layers", type=int, default=2, help="of the shape, with its vocabulary cut alike (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        shape = make_part(options.shape, options.layers)
        gains = measure_gains(options.trace, shape, options.one_in, options.loads, options.repeats)
        costs = {name: compare_pairs(name, options.pairs, options.rounds) for name in TURNS}
    except SluiceError as error:
        print(f"bench_kv_tiers: {error}", file=sys.stderr)
        return 1
    if options.json:
        model = {"shape": options.shape, "layers": options.layers, "vocab_size": shape["vocab_size"]}
        write_result(options.json, "kv_tiers", {"costs": costs, "gains": {"model": model, **gains}})
    return 0


def make_part(name: str, num_layers: int) -> dict[str, object]:
    """Returns the shape with fewer layers and the same share of its vocabulary, so that the head's share stays.

    Raises `UsageError` for a number of layers that it has not.
    """
    whole: dict[str, Any] = make_shape(name)
    all_layers = next(whole[key] for key in LAYER_COUNTS if key in whole)
    if not 0 < num_layers <= all_layers:
        raise UsageError(f"--layers {num_layers}: {name} has 1 to {all_layers}")
    vocab_size = max(VOCAB_SIZE, whole["vocab_size"] * num_layers // all_layers)
    return make_shape(name, num_layers) | {"vocab_size": vocab_size}


def measure_gains(
    trace_file: Path, shape: dict[str, object], one_in: int, loads: Sequence[float], num_repeats: int
) -> dict[str, Any]:
    """Returns the times to first token of each load and side. Raises `UsageError`."""
    whole = read_trace(trace_file, sys.maxsize)
    trace = sample_conversations(whole, one_in)
    arrivals = list(replay(trace, fit_scale(whole, CONTEXT, 1.0), VOCAB_SIZE, seed=1))
    num_pages, num_different = sum(len(one.prompt_ids) // PAGE_SIZE for one in arrivals), count_pages(arrivals)
    flags = ["--device", "cpu", "--cpu-threads", "1", "--max-model-len", str(CONTEXT)]
    flags += ["--num-pages", str(int(CACHE_SHARE * num_different))]
    cores = sorted(os.sched_getaffinity(0))
    with configured_shape(shape, flags) as config:
        waiting = [replace(one, at_s=0.0) for one in arrivals]
        limits = serve_sides(waiting, config, cores, min(num_repeats, len(cores)))
        seconds = {side: statistics.mean(sides[side]["seconds"] for sides in limits) for side in SIDES}
        requests_per_s = len(arrivals) / seconds["without"]
        facts = {
            "requests": len(arrivals),
            "prompt_tokens": sum(len(one.prompt_ids) for one in arrivals),
            "cache_pages": int(CACHE_SHARE * num_different),
            "share_of_pages_asked_for_again": round(1 - num_different / num_pages, 3),
            "share_of_blocks_asked_for_again": {
                "sample": share_asked_for_again(trace),
                "whole trace": share_asked_for_again(whole),
            },
            "requests_per_s_at_most": {side: round(len(arrivals) / seconds[side], 2) for side in SIDES},
        }
        print(facts, flush=True)
        found: dict[str, dict[str, Any]] = {}
        for load in loads:
            runs = serve_sides(at_rate(arrivals, load * requests_per_s), config, cores, num_repeats)
            found[str(load)] = {"ttft_p50_ratio": {side: compare_ttft(runs, side) for side in SIDES[1:]}, "runs": runs}
            print(f"load {load:g}: {found[str(load)]}", flush=True)
    return {**facts, "loads": found}


def compare_ttft(runs: Sequence[dict[str, Any]], side: str) -> dict[str, float]:
    """Returns how many times better the time to first token (p50) is than without a disk."""
    ratios = [run[SIDES[0]]["ttft_ms"]["p50"] / run[side]["ttft_ms"]["p50"] for run in runs]
    return {"median": round(statistics.median(ratios), 2), "least": round(min(ratios), 2)}


def serve_sides(arrivals: Sequence[Arrival], config: Config, cores: Sequence[int], num: int) -> list[dict[str, Any]]:
    """Returns `num` times what schedulers without a disk and with one make of the requests, all sides on a core."""
    found: list[dict[str, Any]] = []
    while len(found) < num:
        with tempfile.TemporaryDirectory(prefix="sluice-kv-") as folder:
            calls: list[tuple[Any, ...]] = []
            for core in cores[: num - len(found)]:
                for side in SIDES:
                    disk = f"{folder}/{core} {side}" if side != "without" else ""
                    cache = replace_struct(config.cache, kv_disk=disk, kv_disk_gb=float(DISK_GB))
                    calls.append((serve, arrivals, replace_struct(config, cache=cache), core, side == "at no cost"))
            served = iter(at_once(calls))
        found += [dict(zip(SIDES, sides, strict=True)) for sides in zip(*[served] * len(SIDES), strict=True)]
    return found


def at_once(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Makes the calls, each a function and its arguments, at the same time in processes of their own."""
    with ProcessPoolExecutor(len(calls), get_context("spawn")) as processes:
        return [future.result() for future in [processes.submit(*call) for call in calls]]


def sample_conversations(trace: Sequence[TraceRequest], one_in: int) -> list[TraceRequest]:
    """Returns one in `one_in` conversations, whole: requests with the same second block, as all share the first."""
    numbers: dict[tuple[int, ...], int] = {}
    return [one for one in trace if numbers.setdefault(one.block_ids[:2], len(numbers)) % one_in == 0]


def share_asked_for_again(trace: Sequence[TraceRequest]) -> float:
    """Returns the share of blocks that an earlier request has, too: what a cache without end would have."""
    blocks = [block_id for one in trace for block_id in one.block_ids]
    return round(1 - len(set(blocks)) / len(blocks), 3)


def count_pages(arrivals: Sequence[Arrival]) -> int:
    """Returns how many different pages the prompts fill."""
    ends = {
        hash(tuple(one.prompt_ids[:end]))
        for one in arrivals
        for end in range(PAGE_SIZE, len(one.prompt_ids), PAGE_SIZE)
    }
    return len(ends)


def at_rate(arrivals: Sequence[Arrival], requests_per_s: float) -> list[Arrival]:
    """Returns the requests with arrival times for that rate per second."""
    speed = (arrivals[-1].at_s - arrivals[0].at_s) * requests_per_s / len(arrivals)
    return [replace(one, at_s=(one.at_s - arrivals[0].at_s) / speed) for one in arrivals]


def serve(arrivals: Sequence[Arrival], config: Config, core: int, is_free: bool) -> dict[str, Any]:
    """Returns what a new scheduler on this core makes of the requests; times to first token are of the second half."""
    os.sched_setaffinity(0, {core})
    runner = load_runner(config, no_report)
    store = runner.page_store
    clock = CpuClock(store, time_with_load(store) if store is not None and is_free else time.process_time)
    gc.collect()
    gc.freeze()  # as the server does
    begin_s = time.process_time()
    served = drive(arrivals, config, runner, clock, StepTimes())
    cpu_s = time.process_time() - begin_s
    if store is not None:
        store.close()
    half = len(arrivals) // 2
    ttft_ms = 1e3 * (served.first_s - served.arrived_s)[half:]
    gauges = served.gauges
    names = ("pages_evicted", "tier_skipped_pages", "disk_pages", "disk_hit_pages", "preemptions", "steps")
    return {
        "ttft_ms": {f"p{part}": round(float(np.percentile(ttft_ms, part)), 1) for part in (50, 90, 99)},
        "cached_share": round(gauges["prefix_hit_tokens"] / gauges["prompt_tokens"], 3),
        "cpu_seconds": round(cpu_s, 2),
        "seconds": round(float(served.last_s.max()), 1),
        **{name: round(gauges[name]) for name in names if name in gauges},
    }


def time_with_load(store: TieredPages) -> Callable[[], float]:
    """Returns a clock of the CPU time of this thread that stands still in calls of the store."""
    spent_s = 0.0

    def uncounted(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            nonlocal spent_s
            begin_s = time.thread_time()
            try:
                return call(*arguments)
            finally:
                spent_s += time.thread_time() - begin_s

        return timed

    for name in ("touch", "put", "estimate_s", "load", "pop_loaded"):
        setattr(store, name, uncounted(getattr(store, name)))
    return lambda: time.thread_time() - spent_s


def compare_pairs(kind: str, num_pairs: int, num_rounds: int) -> dict[str, Any]:
    """Returns with / without in CPU time of turns in which no page is asked for again: the median of the pairs."""
    pairs = [at_once([(compare_speed, kind, num_rounds, pair % 2 == 1)])[0] for pair in range(num_pairs)]
    ratio = statistics.median(pair["cpu_ratio"] for pair in pairs)
    print(f"cost, {kind}: {ratio:.4f}", flush=True)
    return {"cpu_ratio": round(ratio, 4), "pairs": pairs}


def compare_speed(kind: str, num_rounds: int, is_flag_first: bool) -> dict[str, Any]:
    """Returns the median of the ratios of one pair of engines."""
    rows, num_prompt, num_output = TURNS[kind]
    flags = ["--device", "cpu", "--cpu-threads", "1", "--num-pages", str(rows * (num_prompt + num_output) // PAGE_SIZE)]
    params = [SamplingParams(num_output, temperature=0.0, ignore_eos=True)] * rows
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sluice-kv-") as folder:
        disk_flags = ["--kv-disk", folder, "--kv-disk-gb", DISK_GB]
        sides = {"with": disk_flags, "without": []} if is_flag_first else {"without": [], "with": disk_flags}
        engines = {name: OfflineEngine(make_config(BUNDLED, [*flags, *more])) for name, more in sides.items()}
        for seed in range(WARM_UP_ROUNDS + num_rounds):
            rng = random.Random(seed)
            prompts = [rng.choices(range(3, VOCAB_SIZE), k=num_prompt) for _ in range(rows)]
            cpu_s: dict[str, float] = {}
            for name in list(engines)[:: 1 if seed % 2 else -1]:
                begin_s = time.process_time()
                engines[name].generate(prompts, params)
                cpu_s[name] = time.process_time() - begin_s
            ratios.append(cpu_s["with"] / cpu_s["without"])
        gauges = engines["with"].gauges
        for engine in engines.values():
            engine.close()
    found = {name: gauges[name] for name in ("pages_evicted", "tier_skipped_pages", "disk_pages")}
    return {"cpu_ratio": round(statistics.median(ratios[WARM_UP_ROUNDS:]), 4), **found}


if __name__ == "__main__":
    raise SystemExit(main())
