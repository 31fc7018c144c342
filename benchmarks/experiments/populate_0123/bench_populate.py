"""The gain and cost of populating the KV cache's memory before it is used (`--kv-populate`), on a CPU.

    python -m benchmarks.experiments.populate_0123.bench_populate [--model FILE.gguf] [--rounds 3] --json FILE

Servers take turns. Each idles for some seconds, then gets a stream, then prompts one at a time, all on unused pages.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import uvloop

from benchmarks.load.answer import OK, StreamResult
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.server_facts import ServerUnavailableError, ask_server, get
from benchmarks.load.workloads import LengthRange, Lengths, SamplingFields, random_prompts
from benchmarks.model_shapes import SHAPES, configured_shape
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server
from messages.errors import SluiceError

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
TIMEOUT_S = 300.0
SIDES = ("never", "background", "eager")
STREAM_TOKENS = (32, 128)
FIGURES = ("ready_s", "idle_mib", "first_prompt_ms", "prompt_ms", "tokens_per_s", "longest_gap_ms", "used_mib")


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="default: the random weights of --shape")
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--prompts", type=int, default=8, help="of each server (default: %(default)s)")
    add("--prompt-tokens", type=int, default=900, help="default: %(default)s")
    add("--idle-s", type=float, default=10.0, help="before the first request (default: %(default)s)")
    add("--cache-gb", type=float, default=4.0, help="of each server (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    try:
        with ExitStack() as stack:
            flags = ["--model", options.model]
            if options.model is None:
                config = stack.enter_context(configured_shape(SHAPES[options.shape], []))
                flags = ["--model", config.facts.model_dir, "--tokenizer", str(BUNDLED), "--load-format", "dummy"]
            flags += ["--no-standby", "--kv-cache-memory-gb", str(options.cache_gb)]
            prompts = options.prompt_tokens, options.prompts
            for index in range(options.rounds):
                for side in SIDES[index % len(SIDES) :] + SIDES[: index % len(SIDES)]:
                    rounds[side].append(measure([*flags, "--kv-populate", side], options.idle_s, *prompts))
                    print(f"{side}: {rounds[side][-1]}", flush=True)
    except SluiceError as error:
        print(f"bench_populate: {error}", file=sys.stderr)
        return 1
    medians = {
        side: {name: round(statistics.median(each[name] for each in rounds[side]), 2) for name in FIGURES}
        for side in SIDES
    }
    print(medians)
    if options.json:
        facts = {"model": options.model or options.shape, "cache_gb": options.cache_gb, "prompts": prompts}
        write_result(options.json, "populate", {**facts, "medians": medians, "rounds": rounds})
    return 0


def measure(flags: list[str], idle_s: float, num_tokens: int, num_prompts: int) -> dict[str, float]:
    """Returns the figures of a new server; seconds since its start. Raises `ServerUnavailableError`."""
    with started_server(flags, TIMEOUT_S) as (server, target):
        ready_s = time.monotonic() - server.begin_s
        time.sleep(idle_s)
        idle_mib = resident_mib(target)
        prompts_ms = [(one.end_ns - one.begin_ns) / 1e6 for one in send(target, (num_tokens, 1), num_prompts)]
        (stream,) = send(target, STREAM_TOKENS, 1)
        gaps_ms = [(after - before) / 1e6 for before, after in pairwise(stream.arrivals_ns)]
        time.sleep(2.0)  # until the scheduler has reported its memory
        speed = 1000 * len(gaps_ms) / sum(gaps_ms)
        prompt_ms = statistics.median(prompts_ms)
        figures = (ready_s, idle_mib, prompts_ms[0], prompt_ms, speed, max(gaps_ms), resident_mib(target))
        return {name: round(value, 3) for name, value in zip(FIGURES, figures, strict=True)}


def resident_mib(target: Target) -> float:
    """Returns how much of the KV cache is in memory."""
    health = msgspec.json.decode(get(target, "/health")[1])
    return health["processes"]["scheduler"]["gauges"]["kv_cache_resident_bytes"] / 2**20


def send(target: Target, num_tokens: tuple[int, int], num_requests: int) -> Sequence[StreamResult]:
    """Returns the results of random prompts, one at a time. Raises `ServerUnavailableError` if one fails."""
    lengths = Lengths(*(LengthRange(num, num) for num in num_tokens))
    load = Load(target, SamplingFields(ignore_eos=True), Limits(num_requests, TIMEOUT_S))
    prompts = random_prompts(ask_server(target).vocab_size, lengths, num_shared=0, seed=num_tokens[0])
    uvloop.run(load.closed_loop(islice(prompts, num_requests), 1))
    for one in load.measurement.results:
        if one.outcome != OK:
            raise ServerUnavailableError(f"a request failed: {one.outcome}: {one.detail}")
    return load.measurement.results


if __name__ == "__main__":
    raise SystemExit(main())
