"""Tries settings of a server on recorded arrivals, without the server.

    launch.py whatif RECORDING --max-num-seqs 64,128,256 --num-pages 2000,8000 --ttft-slo 0.5

    launch.py calibrate --out steps.json --model DIR
    launch.py whatif TRACE --steps steps.json --max-num-seqs 64,128,256

RECORDING is a directory of --record, with requests and the times of steps; TRACE a Mooncake .jsonl or an Azure 2023
.csv. Every combination of the settings runs through the real scheduler on a simulated clock, on which a step takes what
measured steps of its size took. Not simulated: the drafts of a draft model, drafts in traces, grammars, and clients
that wait for a reply before they send more.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from extras.whatif.calibration import Calibration, read_calibration
from extras.whatif.capacity import Capacity, find_capacity
from extras.whatif.cost_model import CostModel, fit
from extras.whatif.outcome import Outcome, simulate
from extras.whatif.recommendation import doubt_of, recommend
from extras.whatif.recording import read_recording
from extras.whatif.self_check import find_errors
from extras.whatif.settings import VOCAB_SIZE, Setting, check_possible
from extras.whatif.show import capacity_table, outcome_table
from extras.whatif.traces import Arrival, fit_scale, num_cut, read_trace, replay
from messages.errors import SluiceError, UsageError
from messages.program import PROGRAM
from supervisor.programs import program_parser

DEFAULT_STEPS = Path("steps.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 if the command line or a file is wrong."""
    options = make_parser().parse_args(arguments)
    try:
        run(options)
    except SluiceError as error:
        print(f"{PROGRAM} whatif: {error}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser("whatif", __doc__)
    add = parser.add_argument
    count, number = partial(add, type=_count, metavar="N"), partial(add, type=_positive, metavar="X")
    add("source", type=Path, metavar="RECORDING|TRACE", help="recording or trace with the requests")
    add("--steps", type=Path, metavar="FILE", help="measured step times (default: from the recording, or steps.json)")
    for name in ("max-num-seqs", "num-pages", "max-num-batched-tokens"):
        add(f"--{name}", type=_counts, metavar="N,N,…", help="values to try (default: the calibrated value)")
    text = "settings to try (default: the calibrated setting)"
    add("--prefix-caching", dest="enable_prefix_caching", type=_switches, metavar="on,off", help=text)
    number("--ttft-slo", help="find the request rate at which p99 TTFT stays below this many seconds")
    count("--num-requests", default=1000, help="number of requests to simulate (default: %(default)s)")
    count("--skip-requests", default=0, help="number of warm-up requests to skip (default: 0)")
    number("--trace-speed", default=1.0, help="speed-up of the arrival times (default: 1)")
    number("--trace-scale", help="tokens per token of the trace (default: 95 %% of requests fit)")
    number("--pipeline-ms", help="time that HTTP, tokenizer and detokenizer add to TTFT")
    add("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> None:
    """Prints the predicted outcome of each setting. Raises `SluiceError`."""
    calibration, model, arrivals, notes, doubt = read_source(options)
    if options.pipeline_ms is not None:
        calibration = msgspec.structs.replace(calibration, pipeline_s=options.pipeline_ms / 1e3)
    settings = choose_settings(options, calibration)
    outcomes: list[Outcome] = []
    capacities: dict[Setting, Capacity] = {}
    for number, setting in enumerate(settings, 1):
        if sys.stderr.isatty():
            print(f"{number} of {len(settings)}: {setting}", file=sys.stderr)
        outcomes.append(simulate(arrivals, calibration, model, setting))
        if options.ttft_slo:
            p99_ms = _p99_ttft(arrivals, calibration, model, setting)
            rate = len(arrivals) / arrivals[-1].at_s if arrivals[-1].at_s else 0.0
            capacities[setting] = find_capacity(p99_ms, rate, options.ttft_slo * 1e3)
    advice = None if doubt else recommend(outcomes, capacities, options.ttft_slo)
    notes += [f"extrapolated: {one.setting}: {one.extrapolated}" for one in outcomes if one.extrapolated]
    if options.json:
        notes += [doubt] * bool(doubt)
        fields = {"notes": notes, "cost_model": model, "outcomes": outcomes, "recommendation": advice}
        shown = [{"setting": setting, "capacity": capacity} for setting, capacity in capacities.items()]
        print(msgspec.json.encode({**fields, "capacities": shown}).decode())
        return
    basis = f"{calibration.model}: {len(calibration.steps):,} measured steps; {model.fit_text}"
    print("\n".join([basis, *notes]))
    print(f"\n{outcome_table(outcomes)}\n")
    if capacities:
        print(f"{capacity_table(capacities, options.ttft_slo)}\n")
    print(f"recommended: {advice}" if advice else doubt)


def choose_settings(options: argparse.Namespace, calibration: Calibration) -> list[Setting]:
    """Returns every requested combination. Raises `UsageError` for one with which no server would start."""
    names = Setting.__struct_fields__
    tried = [getattr(options, name) or [getattr(calibration, name)] for name in names]
    settings = [Setting(*values) for values in product(*tried)]
    for setting in settings:
        check_possible(setting, calibration)
    return settings


def read_source(options: argparse.Namespace) -> tuple[Calibration, CostModel, list[Arrival], list[str], str]:
    """Returns measured steps, their model, the requests, remarks about them, and the reason for no recommendation (or
    none). Raises `SluiceError`."""
    if not options.source.exists():
        raise UsageError(f"{options.source} does not exist")
    if not options.source.is_dir():
        if options.skip_requests:
            raise UsageError("--skip-requests is for recordings: a trace has no steps that it could leave out")
        calibration = read_calibration(options.steps or DEFAULT_STEPS)
        arrivals, notes = plan_trace(options, calibration.max_model_len)
        if calibration.num_speculative_tokens:
            notes.append("draft tokens (--speculative) are not simulated: a trace has no tokens to look up")
        return calibration, fit(calibration.steps), arrivals, notes, ""
    if options.trace_scale:
        raise UsageError("--trace-scale is for traces: a recording is of the server's own tokens")
    recording = read_recording(options.source, options.skip_requests)
    arrivals = [replace(one, at_s=one.at_s / options.trace_speed) for one in recording.arrivals[: options.num_requests]]
    notes = [f"{len(arrivals)} requests over {arrivals[-1].at_s:,.0f} s"]
    num_engines = len({arrival.engine for arrival in arrivals})
    if num_engines > 1:
        notes.append(f"{num_engines} engines: each request is served by the one that it had; settings are of each")
    if recording.num_left_out:
        notes.append(f"{recording.num_left_out} requests got no token, or began before the recording: left out")
    calibration = read_calibration(options.steps) if options.steps else recording.calibration
    model = fit(calibration.steps)
    errors = {} if options.steps else find_errors(recording, model, options.num_requests)
    if errors:
        reported = ", ".join(f"{name} {error:+.0%}" for name, error in errors.items())
        notes.append(f"simulated with its own settings, the recording is off by: {reported}; expect no less of others")
    return calibration, model, arrivals, notes, doubt_of(errors)


def plan_trace(options: argparse.Namespace, max_model_len: int) -> tuple[list[Arrival], list[str]]:
    """Returns the requests of a trace, scaled, and a description of the scaling. Raises `UsageError`."""
    trace = read_trace(options.source, options.num_requests)
    scale = fit_scale(trace, max_model_len, options.trace_speed)
    if options.trace_scale:
        scale = replace(scale, tokens=options.trace_scale)
    arrivals = list(replay(trace, scale, VOCAB_SIZE, seed=0))
    record = (
        f"{len(arrivals)} requests over {arrivals[-1].at_s:,.0f} s; a token of the trace is {scale.tokens:.4g}, and "
        f"{num_cut(trace, scale)} requests are cut to the context of {max_model_len}"
    )
    return arrivals, [record]


def _p99_ttft(
    arrivals: Sequence[Arrival], calibration: Calibration, model: CostModel, setting: Setting
) -> Callable[[float], float]:
    """Returns the function from requests a second to the p99 TTFT in ms."""

    def at_rate(rate: float) -> float:
        factor = len(arrivals) / arrivals[-1].at_s / rate
        moved = [replace(arrival, at_s=arrival.at_s * factor) for arrival in arrivals]
        return simulate(moved, calibration, model, setting).ttft.p99_ms

    return at_rate


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def _switches(text: str) -> list[bool]:
    if not set(text.split(",")) <= {"on", "off"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not on, off, or both with a comma")
    return [part == "on" for part in text.split(",")]


def _positive(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


if __name__ == "__main__":
    raise SystemExit(main())
