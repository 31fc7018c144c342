"""`launch.py whatif` predictions compared with measurements, for settings and loads not used for the cost model.

    python -m benchmarks.experiments.whatif_0054.bench_whatif --cpu-threads 1 [--rounds 7] [--json FILE] [FLAGS]

In each round the real model serves the loads in this process under each setting. Before and after each run, steps are
measured as `launch.py calibrate` does, with larger settings, and make the prediction for this run, because the speed of
a machine changes within seconds. Time is the CPU time of the process, which with one thread equals the wall time of an
undisturbed machine; idle times are skipped. Results are medians of the rounds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.load.workloads import LengthRange, Lengths, random_prompts, with_poisson_arrivals
from benchmarks.result_file import write_result
from extras.whatif.calibrate import calibrate
from extras.whatif.calibration import Calibration
from extras.whatif.cost_model import fit
from extras.whatif.drive import SkippingClock, serve
from extras.whatif.outcome import Outcome, simulate, summarize
from extras.whatif.settings import VOCAB_SIZE, Setting
from extras.whatif.traces import Arrival, fit_scale, read_trace, replay
from messages.config.server import Config
from messages.errors import SluiceError
from messages.ring.steps import Batch
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Runner, StepFuture
from supervisor.flags import parse_flags
from supervisor.run import build_config

LARGEST = ["--max-num-seqs", "32", "--max-num-batched-tokens", "512", "--num-pages", "2048"]
SETTINGS = [Setting(8, 2000, 384), Setting(16, 2000, 256), Setting(24, 2000, 128), Setting(32, 80, 256)]
LATENCIES, QUANTILES = ("ttft", "inter_token", "e2e"), ("p50_ms", "p90_ms")
FACTS = ("requests_per_s", "num_preemptions", "prefix_hit_rate")
GOAL = 0.15

Case = tuple[str, Setting]
"""The name of a load, and what it runs under."""


class LimitedRunner:
    """The real runner with fewer pages and tokens."""

    can_overlap = can_plan_ahead = False
    num_stages = 1
    degraded = ""
    placement: dict[str, str] = {}  # noqa: RUF012 (never written)
    draft_runner = None
    page_memory = None
    page_store = None
    span_rows = None
    windows = states = None

    def __init__(self, runner: Runner, setting: Setting):
        self.num_pages = setting.num_pages
        self.max_num_batched_tokens = setting.max_num_batched_tokens
        self._runner = runner

    def launch(self, batch: Batch) -> StepFuture:
        return self._runner.launch(batch)

    def memory_gauges(self) -> dict[str, float]:
        return self._runner.memory_gauges()


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if the model or the trace cannot be read."""
    parser = make_parser(__doc__, rounds=7, seconds=2.0)
    parser.add_argument(
        "--speed", action="store_true", help="measure how fast the trace is simulated, and nothing else"
    )
    options, flags = parser.parse_known_args(arguments)
    try:
        sections: dict[str, Any] = dict(parse_flags(["--device", "cpu", "--speculative", "none", *LARGEST, *flags]))
        config = build_config(sections)
        loads = make_loads(options, config)
        runner = load_runner(config, lambda *_: None)
    except SluiceError as error:
        print(f"bench_whatif: {error}", file=sys.stderr)
        return 1
    if options.speed:
        found = calibrate(config, runner, options.seconds, time.process_time)
        result = measure_speed(options, config, found)
        print(f"{result['simulated_s'] / result['cpu_s']:,.0f} times as fast as the trace was recorded: {result}")
        if options.json:
            write_result(options.json, "whatif_speed", result)
        return 0
    predicted: dict[Case, list[Outcome]] = {(load, setting): [] for load in loads for setting in SETTINGS}
    measured: dict[Case, list[Outcome]] = {case: [] for case in predicted}
    lines: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        before = calibrate(config, runner, options.seconds, time.process_time)
        for (load, setting), outcomes in measured.items():
            outcomes.append(measure(loads[load], config, runner, setting))
            after = calibrate(config, runner, options.seconds, time.process_time)
            found = msgspec.structs.replace(after, steps=[*before.steps, *after.steps])
            predicted[load, setting].append(simulate(loads[load], found, fit(found.steps), setting))
            before = after
        lines = [compare(case, predicted[case], measured[case]) for case in predicted]
        if options.json:  # after each round, for the machine may be wanted for something else
            write_result(options.json, "whatif", describe(options, flags, lines))
    for line in lines:
        show(line)
    print(within_goal(lines))
    return 0


def make_parser(description: str | None, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """Returns the options of both benchmarks of predictions, and their defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    trace = Path("../shared/traces/mooncake/conversation_trace.jsonl")
    add("--trace", type=Path, default=trace, help="the second load (default: %(default)s)")
    add("--num-requests", type=int, default=40, help="of each load (default: %(default)s)")
    add("--rounds", type=int, default=rounds, help="default: %(default)s")
    add("--seconds", type=float, default=seconds, help="of steps between two runs (default: %(default)g)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def describe(
    options: argparse.Namespace,
    flags: Sequence[str],
    lines: Sequence[dict[str, Any]],
    latencies: Sequence[str] = LATENCIES,
) -> dict[str, Any]:
    """Returns the result of either benchmark, with how many figures of these latencies are close enough."""
    settings = {name: getattr(options, name) for name in ("num_requests", "seconds")}
    facts = {**settings, "trace": options.trace.name, "flags": flags, "within_goal": within_goal(lines, latencies)}
    return {**facts, "cases": lines}


def make_loads(options: argparse.Namespace, config: Config) -> dict[str, list[Arrival]]:
    """Returns the arrivals of each load, by what it is. Raises `UsageError`."""
    vocab_size, context = config.facts.vocab_size, config.facts.max_model_len
    lengths = Lengths(LengthRange(16, 256), LengthRange(16, 96))
    planned = with_poisson_arrivals(random_prompts(vocab_size, lengths, 0, seed=7), rate=6.0, seed=7)
    poisson = [
        Arrival(msgspec.convert(one.prompt, list[int]), one.max_tokens, one.at_s)
        for one in islice(planned, options.num_requests)
    ]
    trace = read_trace(options.trace, options.num_requests)
    scale = fit_scale(trace, context // 2, speed=5.0)
    return {"poisson, 6 a second": poisson, "trace, 5 times as fast": list(replay(trace, scale, vocab_size, seed=7))}


def measure_speed(options: argparse.Namespace, config: Config, found: Calibration) -> dict[str, Any]:
    """Returns what simulating the trace at its recorded speed takes, by CPU time."""
    trace = read_trace(options.trace, options.num_requests)
    scale = fit_scale(trace, config.facts.max_model_len, speed=1.0)
    arrivals = list(replay(trace, scale, VOCAB_SIZE, seed=7))
    model = fit(found.steps)
    begin_s = time.process_time()
    outcome = simulate(arrivals, found, model, SETTINGS[0])
    cpu_s = time.process_time() - begin_s
    facts = {"trace": options.trace.name, "num_requests": len(arrivals), "setting": str(SETTINGS[0])}
    return {**facts, "simulated_s": outcome.seconds, "cpu_s": cpu_s, "cpu_us_per_step": 1e6 * cpu_s / outcome.num_steps}


def measure(arrivals: Sequence[Arrival], config: Config, runner: Runner, setting: Setting) -> Outcome:
    """Returns the figures of the real model under a setting, by CPU time."""
    scheduling = msgspec.structs.replace(config.scheduling, max_num_seqs=setting.max_num_seqs)
    config = msgspec.structs.replace(config, scheduling=scheduling)
    clock = SkippingClock(time.process_time)
    served = serve(arrivals, config, LimitedRunner(runner, setting), clock, StepTimes())
    return summarize(served, setting, 0.0)


def compare(
    case: Case, predicted: list[Outcome], measured: list[Outcome], facts: Sequence[str] = FACTS
) -> dict[str, Any]:
    """Returns the medians of both, and by how much the prediction is off, for one load and setting.

    `facts` are given as they are.
    """
    line: dict[str, Any] = {"load": case[0], "setting": case[1], "latencies": {}}
    for latency in LATENCIES:
        for quantile in QUANTILES:
            values = [
                [getattr(getattr(outcome, latency), quantile) for outcome in some] for some in (predicted, measured)
            ]
            medians = [statistics.median(some) for some in values]
            error = round(medians[0] / medians[1] - 1, 3)
            line["latencies"][f"{latency} {quantile}"] = {
                "predicted": medians[0],
                "measured": medians[1],
                "error": error,
                "rounds": values,
            }
    for name in facts:
        line[name] = {
            side: statistics.median(getattr(outcome, name) for outcome in some)
            for side, some in (("predicted", predicted), ("measured", measured))
        }
    return line


def within_goal(lines: Sequence[dict[str, Any]], latencies: Sequence[str] = LATENCIES) -> str:
    """Returns how many figures of these latencies are as close as that."""
    errors = [
        abs(values["error"])
        for line in lines
        for name, values in line["latencies"].items()
        if name.split()[0] in latencies
    ]
    num_within = sum(error <= GOAL for error in errors)
    return (
        f"{num_within} of {len(errors)} figures (p50 and p90 of {', '.join(latencies)}) within {GOAL:.0%}; "
        f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}"
    )


def show(line: dict[str, Any]) -> None:
    print(f"{line['load']}: {line['setting']}")
    for name, values in line["latencies"].items():
        mark = "" if abs(values["error"]) <= GOAL else f"  more than {GOAL:.0%}"
        print(f"  {name:18} {values['predicted']:9.1f} {values['measured']:9.1f} {values['error']:+7.1%}{mark}")


if __name__ == "__main__":
    raise SystemExit(main())
