"""Inter-token latency of running streams with and without long prompts arriving, interleaved.

    python -m benchmarks.bench_mixed_steps --model DIR --budgets 512 8192
    python -m benchmarks.bench_mixed_steps --url http://127.0.0.1:8000

With --model, starts one server per value of --budgets (`--max-num-batched-tokens`). A budget above the length of a
burst runs whole prompts in one step. Rounds alternate between the servers, so a slow minute of the machine affects them
all. Within a round, prompts arrive in bursts with quiet phases in between.
"""

import argparse
import asyncio
import contextlib
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from benchmarks.load.answer import OK, UNFINISHED, StreamResult
from benchmarks.load.connection import Target, parse_url
from benchmarks.load.drive import Limits, Load
from benchmarks.load.report import Quantiles, latency_table, quantiles
from benchmarks.load.server_facts import ServerFacts, ServerUnavailableError, ask_server
from benchmarks.load.workloads import LengthRange, Lengths, PlannedRequest, SamplingFields, random_prompts
from benchmarks.result_file import write_result
from benchmarks.server_process import started_server
from extras.whatif.traces import random_ids
from messages.errors import SluiceError

LONG_PROMPT_TOKENS = 1000
STREAM_PROMPT_TOKENS = 16
STREAM_OUTPUT_TOKENS = 1000
START_TIMEOUT_S = 300.0
MAX_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round: `num_streams` streams run for `round_s`; each `interval_s` a burst of `burst` long prompts arrives."""

    num_streams: int
    burst: int
    interval_s: float
    round_s: float


@dataclass(slots=True)
class Gaps:
    """Times between two tokens of a stream; in the disturbed ones a long prompt was waiting for its first token."""

    quiet_ms: list[float] = field(default_factory=list)
    disturbed_ms: list[float] = field(default_factory=list)
    prompt_ms: list[float] = field(default_factory=list)


class MixedResult(msgspec.Struct, frozen=True):
    """What one server did, over all rounds; `latencies` are empty without such events."""

    server: str
    long_prompt_tokens: int
    latencies: dict[str, Quantiles]


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if a server cannot be measured."""
    options = make_parser().parse_args(arguments)
    round_plan = RoundPlan(options.streams, options.burst, options.interval_s, options.round_seconds)
    try:
        with contextlib.ExitStack() as stack:
            results = compare(_servers(options, stack), round_plan, options.rounds)
    except SluiceError as error:
        print(f"bench_mixed_steps: {error}", file=sys.stderr)
        return 1
    for result in results:
        print(f"\n{result.server}: {round_plan.num_streams} streams, ", end="")
        print(f"bursts of {round_plan.burst} prompts of {result.long_prompt_tokens} tokens")
        print("\n".join(latency_table(result.latencies)))
    if options.json:
        write_result(options.json, "mixed_steps", {"plan": round_plan, "rounds": options.rounds, "servers": results})
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="a running server")
    where.add_argument("--model", help="start servers with this model")
    add = parser.add_argument
    add("--budgets", type=int, nargs="+", default=[512, 8192], help="--max-num-batched-tokens of each server")
    add("--streams", type=int, default=16, help="running streams (default: 16)")
    add("--burst", type=int, default=4, help="long prompts that arrive at once (default: 4)")
    add("--interval-s", type=float, default=1.0, help="time between two bursts (default: 1)")
    add("--rounds", type=int, default=3, help="rounds for each server (default: 3)")
    add("--round-seconds", type=float, default=8.0, help="length of a round (default: 8)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def compare(targets: dict[str, Target], round_plan: RoundPlan, num_rounds: int) -> list[MixedResult]:
    """Returns one result a server; the servers take turns. Raises `ServerUnavailableError` if a request fails."""
    facts = {name: ask_server(target) for name, target in targets.items()}
    gaps = {name: Gaps() for name in targets}
    for index in range(num_rounds):
        for name, target in targets.items():
            streams, prompts = uvloop.run(_run_round(target, facts[name], round_plan, seed=index))
            sort_gaps(streams, prompts, gaps[name])
            print(f"round {index + 1} of {num_rounds}: {name}", file=sys.stderr)
    return [MixedResult(name, _long_tokens(facts[name]), _latencies(gaps[name])) for name in targets]


def _servers(options: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Target]:
    if options.url:
        return {options.url: Target(*parse_url(options.url))}
    targets: dict[str, Target] = {}
    for budget in options.budgets:
        flags = ["--model", options.model, "--max-num-batched-tokens", str(budget)]
        _, targets[f"--max-num-batched-tokens {budget}"] = stack.enter_context(started_server(flags, START_TIMEOUT_S))
    return targets


async def _run_round(
    target: Target, facts: ServerFacts, round_plan: RoundPlan, seed: int
) -> tuple[list[StreamResult], list[StreamResult]]:
    """Returns the streams and the long prompts of one round; the streams are cut off when the last prompt has ended."""
    sampling = SamplingFields(ignore_eos=True, cache_salt=uuid.uuid4().hex)
    limits = Limits(MAX_REQUESTS, round_plan.round_s)
    num_output = min(STREAM_OUTPUT_TOKENS, facts.max_model_len - STREAM_PROMPT_TOKENS)
    lengths = Lengths(LengthRange(STREAM_PROMPT_TOKENS, STREAM_PROMPT_TOKENS), LengthRange(num_output, num_output))
    streams, prompts = Load(target, sampling, limits), Load(target, sampling, limits)
    requests = random_prompts(facts.vocab_size, lengths, 0, seed)
    running = asyncio.create_task(streams.closed_loop(requests, round_plan.num_streams))
    await prompts.open_loop(_bursts(facts, round_plan, seed))
    streams.cut_off()
    await running
    results = streams.measurement.results, prompts.measurement.results
    for result in [*results[0], *results[1]]:
        if result.outcome not in (OK, UNFINISHED):
            raise ServerUnavailableError(f"{target.origin}: a request failed: {result.outcome}: {result.detail}")
    return results


def _bursts(facts: ServerFacts, round_plan: RoundPlan, seed: int) -> Iterator[PlannedRequest]:
    """Yields long prompts without end, each unlike all others, in bursts; each asks for one token."""
    rng = np.random.default_rng([seed, 6])
    at_s = round_plan.interval_s
    while True:
        for _ in range(round_plan.burst):
            yield PlannedRequest(random_ids(rng, facts.vocab_size, _long_tokens(facts)), 1, at_s)
        at_s += round_plan.interval_s


def _long_tokens(facts: ServerFacts) -> int:
    return min(LONG_PROMPT_TOKENS, facts.max_model_len - 1)


def sort_gaps(streams: list[StreamResult], prompts: list[StreamResult], gaps: Gaps) -> None:
    """Adds each gap to the disturbed ones if a long prompt ran in any part of it, else to the quiet ones."""
    begins = np.array([prompt.begin_ns for prompt in prompts], dtype=np.int64)
    ends = np.array([prompt.arrivals_ns[0] for prompt in prompts], dtype=np.int64)
    gaps.prompt_ms += ((ends - begins) / 1e6).tolist()
    for stream in streams:
        arrivals = np.asarray(stream.arrivals_ns, dtype=np.int64)
        is_disturbed = ((arrivals[1:, None] > begins) & (arrivals[:-1, None] < ends)).any(axis=1)
        length_ms = np.diff(arrivals) / 1e6
        gaps.quiet_ms += length_ms[~is_disturbed].tolist()
        gaps.disturbed_ms += length_ms[is_disturbed].tolist()


def _latencies(gaps: Gaps) -> dict[str, Quantiles]:
    rows = {
        "inter-token, quiet": gaps.quiet_ms,
        "inter-token, prompts arriving": gaps.disturbed_ms,
        "time to first token of the prompts": gaps.prompt_ms,
    }
    return {name: found for name, values in rows.items() if (found := quantiles(values)) is not None}


if __name__ == "__main__":
    raise SystemExit(main())
