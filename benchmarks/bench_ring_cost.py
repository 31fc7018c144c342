"""The overhead of the processes around the model, seen by clients of a server whose steps take a fixed time.

    python -m benchmarks.bench_ring_cost --streams 64 256 --step-ms 10 --json FILE

The scheduler is real, but its steps only wait (`benchmarks/paced_scheduler.py`). Beyond the steps, clients see HTTP,
tokenization, detokenization, the messages in between, and the load generator itself.
"""

import argparse
import itertools
import random
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil
import uvloop

from benchmarks.load.answer import OK, StreamResult
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.report import Quantiles, latency_table, quantiles
from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.load.workloads import PlannedRequest, SamplingFields
from benchmarks.result_file import write_result
from benchmarks.server_process import ServerProcess, command_of, server_with_scheduler, tree_pids
from messages.errors import SluiceError

START_TIMEOUT_S = 60.0
PROMPT = "the quick brown fox jumps over the lazy dog and then "
MIN_TOKENS, MAX_TOKENS = 32, 224
"""Lengths are drawn between these, so that the streams do not begin and end all at once."""

WARM_UP_S = 3.0
"""A load begins with all streams at once; latencies are of the requests sent after this time."""


class RingCost(msgspec.Struct, frozen=True):
    """One load. `cpu_us_per_token` is the CPU time of each process over the output tokens of all streams."""

    num_streams: int
    step_ms: float
    num_requests: int
    output_tokens_per_s: float
    latencies: dict[str, Quantiles]
    cpu_us_per_token: dict[str, float]
    frontend_tokens_per_core_s: float


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="the model whose tokenizer to use (default: the bundled one)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256], help="streams at a time")
    parser.add_argument("--step-ms", type=float, default=10.0, help="time of a step (default: 10)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each load (default: 10)")
    parser.add_argument("--flags", default="", help="further server flags, as one word")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        flags = [*(["--model", options.model] if options.model else []), *shlex.split(options.flags)]
        steps = "benchmarks.paced_scheduler", flags, START_TIMEOUT_S, ["--step-ms", str(options.step_ms)]
        with server_with_scheduler(*steps) as (server, target):
            costs = [measure(server, target, count, options.step_ms, options.seconds) for count in options.streams]
    except SluiceError as error:
        print(f"bench_ring_cost: {error}", file=sys.stderr)
        return 1
    for cost in costs:
        print_cost(cost)
    if options.json:
        write_result(options.json, "ring_cost", costs)
    return 0


def measure(
    server: ServerProcess,
    target: Target,
    num_streams: int,
    step_ms: float,
    seconds: float,
    others: Sequence[int] = (),
) -> RingCost:
    """Returns the cost seen by a closed loop of `num_streams` streams. Raises `ServerUnavailableError` if one fails.

    CPU time is counted of the server, and of the processes `others` and their descendants.
    """
    before = cpu_seconds(server.pid, *others)
    load = run_load(target, num_streams, WARM_UP_S + seconds)
    used = {name: spent - before.get(name, 0.0) for name, spent in cpu_seconds(server.pid, *others).items()}
    results = load.measurement.results
    num_tokens = sum(result.num_tokens for result in results)
    settled_ns = results[0].begin_ns + WARM_UP_S * 1e9
    settled = [result for result in results if result.begin_ns >= settled_ns]
    per_token = {name: round(1e6 * spent / num_tokens, 2) for name, spent in used.items()}
    return RingCost(
        num_streams=num_streams,
        step_ms=step_ms,
        num_requests=len(settled),
        output_tokens_per_s=round(num_tokens / load.measurement.seconds, 1),
        latencies=latencies_of(settled),
        cpu_us_per_token=per_token,
        frontend_tokens_per_core_s=round(1e6 / per_token["frontend"]),
    )


def run_load(target: Target, num_streams: int, seconds: float) -> Load:
    load = Load(target, SamplingFields(ignore_eos=True), Limits(1_000_000, seconds))
    chance = random.Random(num_streams)
    requests = (
        PlannedRequest(f"{PROMPT}{number}", chance.randint(MIN_TOKENS, MAX_TOKENS)) for number in itertools.count()
    )
    uvloop.run(load.closed_loop(requests, num_streams))
    failed = [result for result in load.measurement.results if result.outcome != OK]
    if failed:
        raise ServerUnavailableError(f"a stream failed: {failed[0].outcome}: {failed[0].detail}")
    return load


def latencies_of(results: list[StreamResult]) -> dict[str, Quantiles]:
    """Returns the client's times and, of the first token's, what is not the scheduler's.

    The scheduler's is all from the tokenizer's message to the token: one that comes in mid-step waits for its end.
    """
    first = [(result.arrivals_ns[0] - result.begin_ns) / 1e6 for result in results]
    in_scheduler = [result.timing["ttft_ms"] - result.timing["tokenize_ms"] for result in results]
    gaps = [np.diff(np.asarray(result.arrivals_ns, dtype=np.int64)) / 1e6 for result in results]
    steps = [result.timing["decode_ms"] / (result.num_tokens - 1) for result in results]
    columns = {
        "time to first token": first,
        "of it outside of the scheduler": [total - inside for total, inside in zip(first, in_scheduler, strict=True)],
        "inter-token": np.concatenate(gaps).tolist(),
        "mean inter-token of a stream": [float(gap.mean()) for gap in gaps],
        "mean step of a stream, in the scheduler": steps,
    }
    return {name: found for name, values in columns.items() if (found := quantiles(values)) is not None}


def cpu_seconds(*roots: int) -> dict[str, float]:
    """Returns the CPU time of each process of these trees so far, by package."""
    spent: dict[str, float] = {}
    for pid in (pid for root in roots for pid in tree_pids(root)):
        times = psutil.Process(pid).cpu_times()
        spent[command_of(pid)] = times.user + times.system
    return spent


def print_cost(cost: RingCost) -> None:
    print(f"\n{cost.num_streams} streams, steps of {cost.step_ms:g} ms: {cost.output_tokens_per_s:,.0f} tokens/s")
    print("\n".join(latency_table(cost.latencies)))
    print("CPU µs a token: " + ", ".join(f"{name} {micros:g}" for name, micros in cost.cpu_us_per_token.items()))
    print(f"one core would carry {cost.frontend_tokens_per_core_s:,.0f} tokens/s of the frontend's work")


if __name__ == "__main__":
    raise SystemExit(main())
