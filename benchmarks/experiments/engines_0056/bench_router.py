"""How well requests are spread over engines: our router, round robin, least load and two random choices, simulated.

    python -m benchmarks.experiments.engines_0056.bench_router TRACE ... --json FILE

TRACE is a Mooncake .jsonl, whose prompts share blocks of 512 tokens, or an Azure 2023 .csv, whose prompts share
nothing. The router is the frontend's own (`frontend/routing/`). The engines are modelled: an LRU cache of blocks,
prompts computed one at a time at `--prefill-rate`, then one token of each running request every `--token-ms`. The trace
is sped up until the engines would be busy for `--busy` of the time with an empty cache. Reports the cached share of
prompt tokens, the work of the busiest engine over the mean, and the time to first token.
"""

import argparse
import heapq
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.result_file import write_result
from extras.whatif.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, read_trace
from frontend.routing.prefixes import PrefixIndex
from frontend.routing.router import MAX_OUTPUT_TOKENS, Offer, choose_engine
from messages.errors import UsageError

NUM_KNOWN_BLOCKS = 65_536
"""That the router remembers of an engine."""

Choose = Callable[[Sequence[Offer]], Offer]


class Machine(NamedTuple):
    """The model of an engine."""

    prefill_rate: float
    """Tokens a second."""
    token_s: float
    """Between two tokens of a running request."""
    num_blocks: int
    """Blocks of an engine's cache."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one policy with `num_engines` engines. Times in seconds."""

    trace: str
    num_engines: int
    policy: str
    hit_rate: float
    imbalance: float
    """The most that an engine has computed, in prompt tokens, divided by the mean; 1 is even."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float


class Engine:
    """Counts what it computes, and knows when it will have done so."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self._cache = PrefixIndex(machine.num_blocks)
        self._free_s = 0.0
        self.num_computed = 0

    def serve(self, request: TraceRequest, now_s: float) -> tuple[int, float, float]:
        """Returns the cached tokens of the prompt, and when the first and the last token come."""
        num_cached = min(
            self._cache.count_match(0, request.block_ids) * MOONCAKE_BLOCK_TOKENS, max(0, request.num_input - 1)
        )
        self._cache.add(0, request.block_ids)
        num_new = request.num_input - num_cached
        self.num_computed += num_new
        self._free_s = max(self._free_s, now_s) + num_new / self._machine.prefill_rate
        return num_cached, self._free_s, self._free_s + request.num_output * self._machine.token_s


def make_policies(seed: int) -> dict[str, Choose]:
    """Returns the ways to choose; they see the same of the engines."""
    rng = random.Random(seed)

    def least_load(offers: Sequence[Offer]) -> Offer:
        return min(offers, key=lambda offer: (offer.load_tokens, offer.last_turn))

    return {
        "round robin": lambda offers: min(offers, key=lambda offer: offer.last_turn),
        "two choices": lambda offers: least_load(rng.sample(list(offers), 2)),
        "least load": least_load,
        "prefix and load": choose_engine,
    }


def simulate(trace: Sequence[TraceRequest], num_engines: int, machine: Machine, busy: float, choose: Choose) -> Outcome:
    """Sends the requests of the trace to the engines; names of trace and policy are left empty."""
    engines = [Engine(machine) for _ in range(num_engines)]
    known = PrefixIndex(NUM_KNOWN_BLOCKS)
    load, last_turns = [0.0] * num_engines, [0] * num_engines
    running: list[tuple[float, int, float]] = []
    num_cached_all, ttfts_s = 0, list[float]()
    span_s = max(1e-9, trace[-1].at_s - trace[0].at_s)
    work_s = sum(request.num_input for request in trace) / machine.prefill_rate / num_engines
    speed = span_s * busy / work_s
    for turn, request in enumerate(trace, 1):
        now_s = (request.at_s - trace[0].at_s) / speed
        while running and running[0][0] <= now_s:
            _, engine, weight = heapq.heappop(running)
            load[engine] -= weight
        offers = [
            Offer(
                engine,
                load[engine],
                known.count_match(engine, request.block_ids) * MOONCAKE_BLOCK_TOKENS,
                last_turns[engine],
            )
            for engine in range(num_engines)
        ]
        chosen = choose(offers)
        engine = chosen.engine
        num_cached, first_s, last_s = engines[engine].serve(request, now_s)
        known.add(engine, request.block_ids)
        weight = max(0, request.num_input - chosen.cached_tokens) + MAX_OUTPUT_TOKENS
        load[engine] += weight
        last_turns[engine] = turn
        heapq.heappush(running, (last_s, engine, weight))
        num_cached_all += num_cached
        ttfts_s.append(first_s - now_s)
    computed = [engine.num_computed for engine in engines]
    percentiles = statistics.quantiles(ttfts_s, n=100)
    return Outcome(
        trace="",
        num_engines=num_engines,
        policy="",
        hit_rate=round(num_cached_all / sum(request.num_input for request in trace), 4),
        imbalance=round(max(computed) / statistics.mean(computed), 3),
        ttft_mean_s=round(statistics.mean(ttfts_s), 3),
        ttft_p50_s=round(percentiles[49], 3),
        ttft_p99_s=round(percentiles[98], 3),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 if a trace cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("traces", nargs="+", type=Path, metavar="TRACE")
    add("--engines", nargs="+", type=int, default=[2, 8, 64], metavar="N", help="how many (default: 2 8 64)")
    add("--requests", type=int, default=20_000, help="most requests of a trace (default: 20000)")
    add("--prefill-rate", type=float, default=8000.0, help="prompt tokens a second of an engine (default: 8000)")
    add("--token-ms", type=float, default=30.0, help="between two tokens of a request (default: 30)")
    add("--cache-tokens", type=int, default=2**19, help="KV cache of an engine (default: 524288)")
    add("--busy", type=float, default=0.8, help="part of the time for which engines compute without a cache")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    machine = Machine(options.prefill_rate, options.token_ms / 1000, options.cache_tokens // MOONCAKE_BLOCK_TOKENS)
    outcomes: list[Outcome] = []
    heads = f"{'hit rate':>9}{'imbalance':>10}{'TTFT mean':>11}{'p50':>8}{'p99':>8}"
    print(f"{'trace':28}{'engines':>8}  {'policy':16}{heads}")
    try:
        for path in options.traces:
            trace = read_trace(path, options.requests)
            for num_engines in options.engines:
                for name, choose in make_policies(options.seed).items():
                    found = simulate(trace, num_engines, machine, options.busy, choose)
                    found = msgspec.structs.replace(found, trace=path.stem, policy=name)
                    outcomes.append(found)
                    rates = f"{found.hit_rate:>9.1%}{found.imbalance:>10.2f}"
                    times = f"{found.ttft_mean_s:>11.2f}{found.ttft_p50_s:>8.2f}{found.ttft_p99_s:>8.2f}"
                    print(f"{found.trace:28}{num_engines:>8}  {name:16}{rates}{times}")
    except UsageError as error:
        print(f"bench_router: {error}", file=sys.stderr)
        return 2
    if options.json:
        settings = {"machine": machine._asdict(), "busy": options.busy, "requests": options.requests}
        write_result(options.json, "router", {"settings": settings, "outcomes": outcomes})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
