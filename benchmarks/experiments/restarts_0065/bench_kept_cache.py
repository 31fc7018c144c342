"""The gain and cost of a KV cache that outlives its scheduler (--keep-kv-cache), on a CPU.

    python -m benchmarks.experiments.restarts_0065.bench_kept_cache --json FILE

Gain: the scheduler is killed under streams of about 2,000 tokens each, in a server with the flag and in one without. A
stream's pause is its time without a token. Cost: schedulers with and without the flag serve the same prompts in turns,
in one process on one thread, and the CPU times of consecutive turns are compared. Both use the bundled model; for the
kills it has random weights and a context of 4,096 tokens.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bench_recovery import process_status
from benchmarks.load.drive import Limits, Load
from benchmarks.load.workloads import PlannedRequest, SamplingFields
from benchmarks.model_shapes import configured_shape, make_config
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server
from messages.columns import pack_int32
from messages.config.server import Config
from messages.errors import SluiceError
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
SIDES = {"without": ["--no-keep-kv-cache"], "with": []}
CONTEXT = 4096
START_TIMEOUT_S, LOAD_TIMEOUT_S, POLL_S = 300.0, 1800.0, 0.05
TOKENS_BEFORE_KILL = 30
"""Tokens of each stream; the first ones have more, because they decode while others are prefilled."""

WARM_UP_ROUNDS = 2
TURN_ROWS, TURN_PROMPT, TURN_OUTPUT = 32, 200, 100


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--streams", type=int, default=32, help="default: %(default)s")
    add("--prompt", type=int, default=1900, help="tokens of each prompt (default: %(default)s)")
    add("--rounds", type=int, default=16, help="turns of each side, of the bundled model (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    shape = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8")) | {"n_positions": CONTEXT}
    try:
        kills = {}
        for side, flags in SIDES.items():
            with configured_shape(shape, []) as config:
                kills[side] = measure_kill(config, flags, options.streams, options.prompt)
            print(f"{side}: {kills[side]}", flush=True)
        speed = compare_speed(options.rounds)
    except SluiceError as error:
        print(f"bench_kept_cache: {error}", file=sys.stderr)
        return 1
    print(f"CPU time with / without: {speed['cpu_ratio']}")
    if options.json:
        facts = {"streams": options.streams, "prompt": options.prompt}
        write_result(options.json, "kept_cache", {**facts, "kills": kills, "speed": speed})
    return 0


def measure_kill(config: Config, side: list[str], num_streams: int, num_prompt_tokens: int) -> dict[str, Any]:
    """Kills the scheduler of a new server under load. Raises `ServerUnavailableError`."""
    room = f"{num_streams * (config.facts.max_model_len // config.cache.block_size + 1)}"
    flags = ["--model", config.facts.model_dir, "--tokenizer", str(BUNDLED), "--load-format", "dummy", *side]
    with started_server([*flags, "--num-pages", room, "--hang-timeout-s", "600"], START_TIMEOUT_S) as (_, target):
        load = Load(target, SamplingFields(ignore_eos=True), Limits(num_streams, LOAD_TIMEOUT_S))
        rng, num_output = random.Random(1), config.facts.max_model_len - num_prompt_tokens
        prompts = [rng.choices(range(3, 3000), k=num_prompt_tokens) for _ in range(num_streams)]
        requests = [PlannedRequest(prompt, num_output) for prompt in prompts]
        return uvloop.run(_kill_under(load, requests, target))


async def _kill_under(load: Load, requests: list[PlannedRequest], target: Any) -> dict[str, Any]:
    running = asyncio.create_task(load.closed_loop(requests, len(requests)))
    results = load.measurement.results
    while len(results) < len(requests) or min(len(one.arrivals_ns) for one in results) < TOKENS_BEFORE_KILL:
        assert not running.done(), "the streams ended before the kill"
        await asyncio.sleep(POLL_S)
    status = process_status(target, "scheduler")
    killed_ns = time.monotonic_ns()
    os.kill(status["pid"], signal.SIGKILL)
    while not all(one.arrivals_ns[-1] > killed_ns + 1e9 for one in results):
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(1.5)  # until a beat has updated the gauges
    gauges = (await asyncio.to_thread(process_status, target, "scheduler"))["gauges"]
    pauses_s = sorted(_pause_s(one.arrivals_ns, killed_ns) for one in results)
    load.cut_off()
    await running
    return {
        "stream_pause_s": {"median": round(statistics.median(pauses_s), 2), "longest": round(pauses_s[-1], 2)},
        **{name: gauges[name] for name in ("resumed_tokens", "recomputed_tokens", "pages_recovered", "pages_dropped")},
    }


def _pause_s(arrivals_ns: Any, since_ns: int) -> float:
    """Returns the longest time without a token, beginning with the last token before `since_ns`."""
    first = sum(at <= since_ns for at in arrivals_ns) - 1
    later = arrivals_ns[first:]
    return max(after - before for before, after in pairwise(later)) / 1e9


class Side:
    """A scheduler of the bundled model, which serves turns."""

    def __init__(self, config: Config, kv_file: Path | None):
        runner = load_runner(config, lambda text, fraction: None, kv_file=kv_file)
        self._scheduler = make_scheduler(config, runner)
        self._stepper = Stepper(self._scheduler, runner, StepTimes())
        self._num_requests = 0

    def serve(self, seed: int) -> float:
        """Serves prompts that follow from the seed; returns the CPU time."""
        rng, begin_s = random.Random(seed), time.process_time()
        for _ in range(TURN_ROWS):
            self._num_requests += 1
            prompt = pack_int32(rng.choices(range(3, 2000), k=TURN_PROMPT))
            params = SamplingParams(max_tokens=TURN_OUTPUT, temperature=0.0, ignore_eos=True)
            self._scheduler.receive(UserMsg(self._num_requests, 0, prompt, params, Stamps()))
        while (batch := self._scheduler.schedule()) is not None:
            self._stepper.step(batch, time.monotonic())
            self._scheduler.pop_replies()
        return time.process_time() - begin_s


def compare_speed(num_rounds: int) -> dict[str, Any]:
    """Returns the CPU seconds of each turn, and the median over the rounds of with / without."""
    config = make_config(BUNDLED, ["--device", "cpu", "--cpu-threads", "1", "--num-pages", "1200"])
    with memory_file() as file:
        sides = {"without": Side(config, None), "with": Side(config, file)}
        turns_s: dict[str, list[float]] = {name: [] for name in sides}
        for seed in range(WARM_UP_ROUNDS + num_rounds):
            for name in list(sides)[:: 1 if seed % 2 else -1]:
                turns_s[name].append(round(sides[name].serve(seed), 3))
    turns_s = {name: turns[WARM_UP_ROUNDS:] for name, turns in turns_s.items()}
    ratios = [after / before for before, after in zip(turns_s["without"], turns_s["with"], strict=True)]
    best = min(turns_s["with"]) / min(turns_s["without"])
    return {"cpu_ratio": round(statistics.median(ratios), 4), "cpu_ratio_of_best": round(best, 4), "cpu_s": turns_s}


@contextmanager
def memory_file() -> Iterator[Path]:
    """A file in memory, as the launcher makes it."""
    descriptor = os.memfd_create("kv-cache")
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


if __name__ == "__main__":
    raise SystemExit(main())
