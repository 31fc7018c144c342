"""`launch.py whatif` predictions compared with what clients of a real server measure over HTTP.

    python -m benchmarks.experiments.whatif_0054.bench_whatif_http --cpu-threads 1 [--rounds 3] [--json FILE] [FLAGS]

In each round, one server with the largest settings is recorded (`--record`), and one server per setting serves the
loads of `bench_whatif` unrecorded while the client measures. Before and after each of these, the recorded server gets
its own load of 1, 2, 4 … concurrent requests. Its steps and its tokenizer and detokenizer times make the prediction for
the setting, so both see the machine in the same state. All servers touch every page of their caches first, because new
memory takes time that the model ignores. Results are medians of the rounds. Time is wall time, so nothing else should
run.
"""

import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import uvloop

from benchmarks.experiments.whatif_0054.bench_whatif import (
    LARGEST,
    SETTINGS,
    Case,
    compare,
    describe,
    make_loads,
    make_parser,
    show,
    within_goal,
)
from benchmarks.load.answer import OK
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load, Measurement
from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.load.workloads import LengthRange, Lengths, PlannedRequest, SamplingFields, random_prompts
from benchmarks.result_file import write_result
from benchmarks.server_process import started_server
from extras.whatif.cost_model import fit
from extras.whatif.outcome import Outcome, quantiles, simulate
from extras.whatif.recording import Recording, read_recording
from extras.whatif.self_check import find_errors
from extras.whatif.settings import Setting
from extras.whatif.traces import Arrival
from messages.config.server import Config
from messages.errors import SluiceError
from supervisor.flags import parse_flags
from supervisor.run import build_config

START_TIMEOUT_S = 120.0
MAX_SECONDS = 120.0
WARM_UP_REQUESTS = 4
MANY = 1_000_000
CALIBRATION_SEED = 1001
LEAST_CHUNK = 8
COMPARED = ("ttft", "inter_token")
FACTS = ("requests_per_s",)


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server or the trace cannot be used."""
    options, flags = make_parser(__doc__, rounds=3, seconds=3.0).parse_known_args(arguments)
    flags = ["--device", "cpu", "--speculative", "none", "--log-level", "warning", *flags]
    predicted: dict[Case, list[Outcome]] = {}
    measured: dict[Case, list[Outcome]] = {}
    self_errors: list[dict[str, float]] = []
    lines: list[dict[str, Any]] = []
    try:
        config = build_config(dict(parse_flags([*LARGEST, *flags])))
        loads = make_loads(options, config)
        for _ in range(options.rounds):
            with RecordedServer(config, flags) as server:
                server.serve_load(options.seconds)
                for setting in SETTINGS:
                    outcomes = measure(list(loads.values()), config, flags, setting)
                    server.serve_load(options.seconds)
                    recording = server.read_last_loads()
                    found, model = recording.calibration, fit(recording.calibration.steps)
                    self_errors.append(find_errors(recording, model, MANY))
                    for (load, arrivals), outcome in zip(loads.items(), outcomes, strict=True):
                        measured.setdefault((load, setting), []).append(outcome)
                        predicted.setdefault((load, setting), []).append(simulate(arrivals, found, model, setting))
            lines = [compare(case, predicted[case], measured[case], FACTS) for case in predicted]
            if options.json:  # after each round, for the machine may be wanted for something else
                result = {**describe(options, flags, lines, COMPARED), "self_errors": self_errors}
                write_result(options.json, "whatif_http", result)
    except SluiceError as error:
        print(f"bench_whatif_http: {error}", file=sys.stderr)
        return 1
    for line in lines:
        show(line)
    print(within_goal(lines, COMPARED))
    return 0


class RecordedServer:
    """A server with the largest settings, whose frames are kept; a context manager."""

    def __init__(self, config: Config, flags: Sequence[str]):
        self._config = config
        self._flags = flags
        self._num_requests: list[int] = []
        """Requests of the warm-up and of each load."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        num_pages = self._config.cache.num_pages
        assert num_pages is not None, "LARGEST has a number of pages"
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="sluice-bench-"))) / "recording"
            command = [*LARGEST, *self._flags, "--record", str(self._folder)]
            _, self._target = stack.enter_context(started_server(command, START_TIMEOUT_S))
            self._num_requests.append(warm_up(self._config, self._target, num_pages))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def serve_load(self, seconds: float) -> None:
        """Sends requests of random lengths, for an equal time at each concurrency."""
        context = self._config.facts.max_model_len
        lengths = Lengths(LengthRange(LEAST_CHUNK, context // 2), LengthRange(16, context // 8))
        levels = [1 << power for power in range(self._config.scheduling.max_num_seqs.bit_length())]
        self._num_requests.append(0)
        for level in levels:
            seed = CALIBRATION_SEED + sum(self._num_requests)
            requests = random_prompts(self._config.facts.vocab_size, lengths, 0, seed)
            load = Load(self._target, _sampling(), Limits(MANY, seconds / len(levels)))
            uvloop.run(load.closed_loop(requests, level))
            _check(load.measurement)
            self._num_requests[-1] += len(load.measurement.results)

    def serve_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Sends these requests at their times."""
        serve_open(self._target, arrivals)
        self._num_requests.append(len(arrivals))

    def read_last_loads(self) -> Recording:
        """Returns what has been recorded of the last two loads."""
        return read_recording(self._folder, sum(self._num_requests[:-2]))


def warm_up(config: Config, target: Target, num_pages: int) -> int:
    """Uses every page of the cache. Returns the number of requests."""
    num_input = config.facts.max_model_len // 2
    num_requests = -(-num_pages * config.cache.block_size // num_input)
    lengths = Lengths(LengthRange(num_input, num_input), LengthRange(1, 1))
    load = Load(target, _sampling(), Limits(num_requests, MAX_SECONDS))
    uvloop.run(load.closed_loop(random_prompts(config.facts.vocab_size, lengths, 0, CALIBRATION_SEED), 2))
    _check(load.measurement)
    return num_requests


def measure(loads: Sequence[list[Arrival]], config: Config, flags: Sequence[str], setting: Setting) -> list[Outcome]:
    """Returns what the clients of a server with this setting see, load by load. Raises `ServerUnavailableError`."""
    outcomes: list[Outcome] = []
    with started_server([*flags, *str(setting).split()], START_TIMEOUT_S) as (_, target):
        warm_up(config, target, setting.num_pages)
        for number, arrivals in enumerate([loads[0][:WARM_UP_REQUESTS], *loads]):
            measurement = serve_open(target, arrivals)
            if number:  # the first one has warmed up
                outcomes.append(summarize(measurement, setting))
    return outcomes


def serve_open(target: Target, arrivals: Sequence[Arrival]) -> Measurement:
    load = Load(target, _sampling(), Limits(MANY, MAX_SECONDS))
    requests = (PlannedRequest(one.prompt_ids, one.num_output, one.at_s) for one in arrivals)
    uvloop.run(load.open_loop(requests))
    _check(load.measurement)
    return load.measurement


def summarize(measurement: Measurement, setting: Setting) -> Outcome:
    """Returns the client's figures; what only the scheduler knows is 0."""
    results = measurement.results
    gaps = [np.diff(np.asarray(result.arrivals_ns, dtype=np.int64)) for result in results]
    return Outcome(
        setting=setting,
        num_requests=len(results),
        num_steps=0,
        seconds=measurement.seconds,
        ttft=quantiles(np.array([result.arrivals_ns[0] - result.begin_ns for result in results]) / 1e9),
        inter_token=quantiles(np.concatenate(gaps) / 1e9),
        e2e=quantiles(np.array([result.arrivals_ns[-1] - result.begin_ns for result in results]) / 1e9),
        requests_per_s=len(results) / measurement.seconds,
        output_tokens_per_s=sum(result.num_tokens for result in results) / measurement.seconds,
        num_preemptions=0,
        prefix_hit_rate=0.0,
        waits={},
    )


def _sampling() -> SamplingFields:
    """No load finds anything of another one in the prefix cache."""
    return SamplingFields(ignore_eos=True, cache_salt=uuid.uuid4().hex)


def _check(measurement: Measurement) -> None:
    failed = [result for result in measurement.results if result.outcome != OK]
    if failed:
        raise ServerUnavailableError(f"a request failed: {failed[0].outcome}: {failed[0].detail}")


if __name__ == "__main__":
    raise SystemExit(main())
