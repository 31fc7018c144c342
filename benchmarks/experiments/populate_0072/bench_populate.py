"""The gain and cost of populating the KV cache's memory before it is used (`--kv-populate`), on a CPU.

    python -m benchmarks.experiments.populate_0072.bench_populate [--shape gpt2-124m] [--rounds 3] --json FILE

Servers with random weights take turns. As soon as a server is ready it gets a stream, then prompts one at a time, all
on unused pages. A second server with `background` first idles until its memory is populated.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path

import uvloop

from benchmarks.load.answer import OK, StreamResult
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.server_facts import ServerUnavailableError, ask_server
from benchmarks.load.workloads import LengthRange, Lengths, SamplingFields, random_prompts
from benchmarks.model_shapes import SHAPES, configured_shape
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import ServerProcess, started_server
from messages.errors import SluiceError

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
TIMEOUT_S = 300.0
DONE = " populated in "
"""In the log, when all pages have their memory."""

SIDES = ("never", "background", "background, left alone", "eager")
STREAM, PROMPT = (32, 128), (900, 1)
"""Tokens in and out."""

FIGURES = ("ready_s", "populated_s", "longest_gap_ms", "prompt_ms")


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--prompts", type=int, default=8, help="of each server (default: %(default)s)")
    add("--cache-gb", type=float, default=2.0, help="of each server (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    try:
        with configured_shape(SHAPES[options.shape], []) as config:
            flags = ["--model", config.facts.model_dir, "--tokenizer", str(BUNDLED), "--load-format", "dummy"]
            flags += ["--no-standby", "--kv-cache-memory-gb", str(options.cache_gb)]
            for index in range(options.rounds):
                for side in SIDES[index % len(SIDES) :] + SIDES[: index % len(SIDES)]:
                    rounds[side].append(measure(side, flags, options.prompts))
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
        facts = {"shape": options.shape, "cache_gb": options.cache_gb, "num_prompts": options.prompts}
        write_result(options.json, "populate", {**facts, "medians": medians, "rounds": rounds})
    return 0


def measure(side: str, flags: list[str], num_prompts: int) -> dict[str, float]:
    """Returns the figures of a new server; seconds since its start. Raises `ServerUnavailableError`."""
    with started_server([*flags, "--kv-populate", side.partition(",")[0]], TIMEOUT_S) as (server, target):
        ready_s = time.monotonic() - server.begin_s
        if side.endswith("left alone"):
            wait_until_populated(server)
        (stream,) = send(target, STREAM, 1)
        gaps_ms = [(after - before) / 1e6 for before, after in pairwise(stream.arrivals_ns)]
        prompts_ms = [(one.end_ns - one.begin_ns) / 1e6 for one in send(target, PROMPT, num_prompts)]
        if side != "never":
            wait_until_populated(server)
        populated_s = next((at_s for at_s, line in server.log if DONE in line), 0.0)
        figures = (ready_s, populated_s, max(gaps_ms), statistics.median(prompts_ms))
        return {name: round(value, 3) for name, value in zip(FIGURES, figures, strict=True)}


def wait_until_populated(server: ServerProcess) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not any(DONE in line for _, line in list(server.log)):
        if time.monotonic() > deadline_s:
            raise ServerUnavailableError(f"the KV cache was not populated after {TIMEOUT_S:g} s:\n{server.log_text()}")
        time.sleep(0.05)


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
