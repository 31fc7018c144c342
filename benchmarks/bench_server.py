"""Streaming load on a running server: throughput, latencies, and the phases of the server's own timeline.

    python -m benchmarks.bench_server --concurrency 64 --num-requests 512 --ignore-eos
    python -m benchmarks.bench_server --rate 20 --input-tokens 100:400 --max-seconds 60
    python -m benchmarks.bench_server --trace ../shared/traces/mooncake/conversation_trace.jsonl --trace-speed 10

Inter-token latency is the time between two events of a stream that carry tokens. The API key comes from the environment
variable SLUICE_API_KEY, because a flag would end up in the command line of the result.
"""

import argparse
import os
import resource
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop
from tqdm import tqdm

from benchmarks.load import workloads
from benchmarks.load.answer import OK
from benchmarks.load.connection import Target, parse_url
from benchmarks.load.drive import Limits, Load, run_interruptible
from benchmarks.load.paced_server import check_client
from benchmarks.load.report import Report, format_report, make_report
from benchmarks.load.server_facts import ServerFacts, ServerUnavailableError, ask_server
from benchmarks.load.workloads import (
    LengthRange,
    Lengths,
    PlannedRequest,
    SamplingFields,
    parse_range,
    random_prompts,
    with_poisson_arrivals,
)
from benchmarks.result_file import write_result
from extras.whatif import traces
from messages.errors import SluiceError, UsageError

DEFAULT_TOKENS = 128
WARMUP_SEED_OFFSET = 1_000_003


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--concurrency", type=_at_least_one, help="streams that run at any time (default: 16)")
    when.add_argument("--rate", type=_positive, help="requests a second, at the times of a Poisson process")
    when.add_argument("--trace", type=Path, metavar="FILE", help="replay a Mooncake .jsonl or Azure 2023 .csv trace")
    when.add_argument("--self-check", action="store_true", help="measure this client against a trivial local server")
    add("--trace-speed", type=_positive, default=1.0, help="times faster than recorded (default: 1)")
    add("--trace-scale", type=_positive, help="tokens for one of the trace (default: so that 95%% of them fit)")
    add("--num-requests", type=_at_least_one, default=256, help="requests at most (default: 256)")
    add("--max-seconds", type=_positive, default=300.0, help="start no request after this time (default: 300)")
    add("--request-timeout-s", type=_positive, default=120.0, help="longest time of one request (default: 120)")
    add("--warmup", type=int, default=2, help="requests sent first and not measured (default: 2)")
    add("--prompts", choices=["random", *workloads.SOURCES], default="random", help="random: token ids")
    add("--prompts-dir", type=Path, default=workloads.DEFAULT_DIR, help="directory of real prompts (%(default)s)")
    add("--input-tokens", type=_range, help="length or range, 100:1024 (default: 128, or a quarter of the context)")
    add("--output-tokens", type=_range, help="the same for max_tokens")
    add("--shared-prefix", type=int, default=0, metavar="N", help="random prompts begin with the same N tokens")
    add("--ignore-eos", action="store_true", help="generate the full length of every output")
    add("--temperature", type=float, default=0.0, help="default: %(default)s")
    add("--seed", type=int, default=0, help="of prompts, lengths and arrival times (default: 0)")
    add("--cache-salt", help="prefix-cache namespace; empty: the common one (default: a new one each run)")
    add("--show-progress", action="store_true", help="show the progress bar even if stderr is no terminal")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, 1 if the server cannot be measured or no request succeeded, 2 on bad usage."""
    options = make_parser().parse_args(arguments)
    try:
        report, model = (run_self_check(), "none") if options.self_check else run_load(options)
    except SluiceError as error:
        print(f"bench_server: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print(format_report(report))
    if options.json:
        write_result(options.json, "server", {"model": model, "settings": _settings(options), "report": report})
    return 0 if report.outcomes.get("ok") else 1


def run_load(options: argparse.Namespace) -> tuple[Report, str]:
    """Returns the report of the run, or of what Ctrl-C left of it, and the model's name. Raises `SluiceError`."""
    host, port = parse_url(options.url)
    target = Target(host, port, os.environ.get("SLUICE_API_KEY", ""), options.request_timeout_s)
    facts = ask_server(target)
    requests, num_requests = plan(options, facts)
    salt = uuid.uuid4().hex if options.cache_salt is None else options.cache_salt
    sampling = SamplingFields(options.temperature, options.ignore_eos, salt)
    _raise_file_limit()
    _warm_up(target, sampling, facts, options)
    load = Load(target, sampling, Limits(num_requests, options.max_seconds))
    with tqdm(total=num_requests, unit="req", disable=False if options.show_progress else None) as bar:
        load.on_end = lambda result: bar.update()
        if options.trace or options.rate:
            run_interruptible(load, load.open_loop(requests))
        else:
            run_interruptible(load, load.closed_loop(requests, options.concurrency or 16))
    return make_report(load.measurement), facts.model


def plan(options: argparse.Namespace, facts: ServerFacts) -> tuple[Iterator[PlannedRequest], int]:
    """Returns the requests to send and their number. Raises `UsageError` if it does not fit the server."""
    if options.trace:
        return _plan_trace(options, facts)
    lengths = _lengths(options, facts)
    if options.prompts == "random":
        requests = random_prompts(facts.vocab_size, lengths, options.shared_prefix, options.seed)
    elif options.shared_prefix:
        raise UsageError("--shared-prefix is for random prompts; --prompts big-bench-hard shares real prefixes")
    else:
        cutter = workloads.TextCutter(facts)
        requests = workloads.text_prompts(options.prompts, options.prompts_dir, cutter, lengths, options.seed)
    if options.rate:
        requests = with_poisson_arrivals(requests, options.rate, options.seed)
    return requests, options.num_requests


def run_self_check() -> Report:
    """Prints what one stream costs this client, and returns the report of 64 streams; a token every 5 ms in each."""
    one = check_client(1)
    gap = one.latencies["inter-token"]
    print(f"one stream of a token every 5 ms: {one.client.cpu_us_per_token:.1f} µs of CPU a token, ", end="")
    print(f"seen every {gap.p50_ms:.2f} ms (p99 {gap.p99_ms:.2f})\n\n64 streams:")
    return check_client(64)


def _plan_trace(options: argparse.Namespace, facts: ServerFacts) -> tuple[Iterator[PlannedRequest], int]:
    trace = traces.read_trace(options.trace, options.num_requests)
    scale = traces.fit_scale(trace, facts.max_model_len, options.trace_speed)
    if options.trace_scale:
        scale = traces.TraceScale(options.trace_scale, options.trace_speed, facts.max_model_len)
    print(
        f"{len(trace)} requests of {options.trace.name}, {scale.speed:g}x as fast, one token is {scale.tokens:.4g}; "
        f"{traces.num_cut(trace, scale)} are longer than the context and are cut"
    )
    arrivals = traces.replay(trace, scale, facts.vocab_size, options.seed)
    return (PlannedRequest(one.prompt_ids, one.num_output, one.at_s) for one in arrivals), len(trace)


def _settings(options: argparse.Namespace) -> dict[str, object]:
    """The settings of the run, including defaults and excluding paths."""
    provided = {name: value for name, value in vars(options).items() if value is not None}
    return {name: value for name, value in provided.items() if not isinstance(value, Path)}


def _lengths(options: argparse.Namespace, facts: ServerFacts) -> Lengths:
    default = min(DEFAULT_TOKENS, facts.max_model_len // 4)
    usual = LengthRange(default, default)
    output = options.output_tokens or usual
    if options.prompts not in ("random", "tinyshakespeare"):
        usual = LengthRange(1, max(1, facts.max_model_len - output.high - workloads.SPARE_TOKENS))
    lengths = Lengths(options.input_tokens or usual, output)
    lengths.check(facts.max_model_len)
    return lengths


def _warm_up(target: Target, sampling: SamplingFields, facts: ServerFacts, options: argparse.Namespace) -> None:
    """Sends a few requests of other random prompts, so that what a server does once is not measured."""
    lengths = Lengths(LengthRange(16, 16), LengthRange(16, 16))
    requests = random_prompts(facts.vocab_size, lengths, 0, options.seed + WARMUP_SEED_OFFSET)
    load = Load(target, sampling, Limits(options.warmup, options.max_seconds))
    uvloop.run(load.closed_loop(requests, 1))
    failed = [result for result in load.measurement.results if result.outcome != OK]
    if failed:
        raise ServerUnavailableError(f"the warm-up failed: {failed[0].outcome}: {failed[0].detail}")


def _raise_file_limit() -> None:
    """An open loop may have more streams than the usual 1,024 descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _checked(convert: Callable[[str], float], least: float, is_excluded: bool = False) -> Callable[[str], float]:
    def check(text: str) -> float:
        value = convert(text)
        if value < least or (is_excluded and value == least):
            raise argparse.ArgumentTypeError(f"{text} is not {'above' if is_excluded else 'at least'} {least:g}")
        return value

    return check


_positive = _checked(float, 0.0, is_excluded=True)
_at_least_one = _checked(int, 1)


def _range(text: str) -> LengthRange:
    try:
        return parse_range(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a length nor a range such as 100:1024") from None


if __name__ == "__main__":
    raise SystemExit(main())
