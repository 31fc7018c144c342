"""Prefix cache hits of several engines compared with one, on a real server.

    python -m benchmarks.experiments.engines_0056.bench_engines TRACE --json FILE

Each number of engines serves the same loads in the same order, with a fixed number of concurrent requests: groups of
prompts that share a long beginning, the conversations of a Mooncake TRACE scaled to the model's context, and a skewed
load in which most prompts share one beginning. Reports the cached share of prompt tokens, the time to first token, and
each engine's requests and computed prompt tokens.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from benchmarks.load.answer import OK
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.server_facts import ServerFacts, ServerUnavailableError, ask_server, get
from benchmarks.load.workloads import PlannedRequest, SamplingFields
from benchmarks.result_file import write_result
from benchmarks.server_process import started_server
from extras.whatif.traces import fit_scale, random_ids, read_trace, replay
from messages.control.processes import kind_of
from messages.engine_names import SCHEDULER
from messages.errors import SluiceError

START_TIMEOUT_S = 120.0
MAX_SECONDS = 300.0
NUM_GROUPS, NUM_SHARED, NUM_OWN = 16, 512, 32
HOT_SHARE = 0.9
"""The share of requests with the common beginning in the skewed load."""

BEAT_S = 2.5
"""After which the gauges are those of the end."""

COUNTERS = ("admitted", "prompt_tokens", "prefix_hit_tokens")


class Outcome(msgspec.Struct, frozen=True):
    """What a load came to. `requests` and `computed_tokens` (of prompts) are of each engine."""

    load: str
    num_engines: int
    concurrency: int
    hit_rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    seconds: float
    requests: list[int]
    computed_tokens: list[int]


def make_loads(facts: ServerFacts, options: argparse.Namespace) -> dict[str, list[PlannedRequest]]:
    """Returns the requests of each load. Raises `UsageError` for a file that is no trace."""
    rng, vocab_size, num_requests = np.random.default_rng(options.seed), facts.vocab_size, options.requests

    def grouped(shares: Sequence[float], num_output: int) -> list[PlannedRequest]:
        beginnings = [random_ids(rng, vocab_size, NUM_SHARED) for _ in shares]
        groups = rng.choice(len(shares), size=num_requests, p=shares)
        own = [random_ids(rng, vocab_size, NUM_OWN) for _ in groups]
        return [PlannedRequest(beginnings[group] + rest, num_output) for group, rest in zip(groups, own, strict=True)]

    requests = read_trace(options.trace, options.trace_requests)
    arrivals = replay(requests, fit_scale(requests, facts.max_model_len, speed=1.0), vocab_size, options.seed)
    rest = (1 - HOT_SHARE) / (NUM_GROUPS - 1)
    return {
        "shared beginnings": grouped([1 / NUM_GROUPS] * NUM_GROUPS, 16),
        options.trace.stem: [PlannedRequest(one.prompt_ids, min(one.num_output, 16)) for one in arrivals],
        "skewed": grouped([HOT_SHARE, *[rest] * (NUM_GROUPS - 1)], 64),
    }


def measure(target: Target, name: str, requests: list[PlannedRequest], concurrency: int) -> Outcome:
    """Returns the outcome of the load on an idle server. Raises `ServerUnavailableError` if a request fails."""
    before = counters(target)
    load = Load(target, SamplingFields(ignore_eos=True), Limits(len(requests), MAX_SECONDS))
    uvloop.run(load.closed_loop(iter(requests), concurrency))
    results = load.measurement.results
    if failed := [result for result in results if result.outcome != OK]:
        raise ServerUnavailableError(
            f"{len(failed)} requests failed, the first: {failed[0].outcome} {failed[0].detail}"
        )
    time.sleep(BEAT_S)
    after = counters(target)
    ttfts_s = np.array([result.arrivals_ns[0] - result.begin_ns for result in results]) / 1e9
    admitted, prompt, hit = np.array(
        [[after[engine][key] - before[engine][key] for engine in after] for key in COUNTERS]
    )
    return Outcome(
        load=name,
        num_engines=len(after),
        concurrency=concurrency,
        hit_rate=round(float(hit.sum() / prompt.sum()), 4),
        ttft_p50_s=round(float(np.quantile(ttfts_s, 0.5)), 3),
        ttft_p99_s=round(float(np.quantile(ttfts_s, 0.99)), 3),
        seconds=round(load.measurement.seconds, 2),
        requests=admitted.astype(int).tolist(),
        computed_tokens=(prompt - hit).astype(int).tolist(),
    )


def counters(target: Target) -> dict[str, dict[str, float]]:
    """Returns the gauges of each engine. Raises `ServerUnavailableError` if one does not serve."""
    processes = msgspec.json.decode(get(target, "/health")[1])["processes"]
    return {name: process["gauges"] for name, process in processes.items() if kind_of(name) == SCHEDULER}


def wait_for_engines(target: Target, num_engines: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while sum("prompt_tokens" in gauges for gauges in counters(target).values()) < num_engines:
        if time.monotonic() > deadline_s:
            raise ServerUnavailableError(f"not all of {num_engines} engines serve")
        time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if a server or the trace cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", type=Path, help="a Mooncake .jsonl")
    add("--engines", nargs="+", type=int, default=[1, 2], metavar="N", help="how many (default: 1 2)")
    add("--requests", type=int, default=300, help="of the loads that are made up (default: 300)")
    add("--trace-requests", type=int, default=1500, help="of the trace, from its begin (default: 1500)")
    add("--concurrency", type=int, default=16, help="requests at a time (default: 16)")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    add("launch_flags", nargs="*", metavar="-- FLAG", help="more flags for launch.py, after --")
    options = parser.parse_args(arguments)
    flags = ["--cpu-threads", "1", "--no-standby", "--log-level", "warning", *options.launch_flags]
    outcomes: list[Outcome] = []
    print(f"{'load':24}{'engines':>8}{'hit rate':>10}{'TTFT p50':>10}{'p99':>8}  requests, prompt tokens computed")
    try:
        for num_engines in options.engines:
            with started_server([*flags, "--data-parallel", str(num_engines)], START_TIMEOUT_S) as (_, target):
                wait_for_engines(target, num_engines)
                loads = make_loads(ask_server(target), options)
                for name, requests in loads.items():
                    found = measure(target, name, requests, options.concurrency)
                    outcomes.append(found)
                    head = f"{name:24}{num_engines:>8}{found.hit_rate:>10.1%}"
                    times = f"{found.ttft_p50_s:>10.3f}{found.ttft_p99_s:>8.3f}"
                    print(f"{head}{times}  {found.requests} {found.computed_tokens}", flush=True)
    except SluiceError as error:
        print(f"bench_engines: {error}", file=sys.stderr)
        return 1
    if options.json:
        settings = {
            "requests": options.requests,
            "trace_requests": options.trace_requests,
            "concurrency": options.concurrency,
            "flags": flags,
        }
        write_result(options.json, "engines", {"settings": settings, "outcomes": outcomes})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
