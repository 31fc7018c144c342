"""Measures steps of every size that a server's flags allow, in this process.

    launch.py calibrate --out steps.json [--seconds 30] [FLAGS OF THE SERVER]

Requests of random lengths, first one at a time, then 2, 4, 8 … up to --max-num-seqs, run on the real model. Steps are
timed by the clock, so nothing else should run meanwhile. A setting asked of `launch.py whatif` that is larger than the
one calibrated is extrapolated: calibrate with the largest.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from extras.whatif.calibration import Calibration, StepRecorder
from extras.whatif.cost_model import fit
from extras.whatif.drive import SkippingClock, serve
from extras.whatif.traces import Arrival, random_ids
from messages.config.server import Config
from messages.errors import SluiceError, UsageError
from messages.program import PROGRAM
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.stepper import Runner
from supervisor.flags import parse_flags
from supervisor.programs import program_parser
from supervisor.run import build_config

SHORTEST_OUTPUT, LONGEST_OUTPUT = 16, 128
ARRIVALS_PER_STEP = 2.0

Source = Callable[[], float]
"""A clock: returns seconds."""


def calibrate(config: Config, runner: Runner, seconds: float, source: Source = time.monotonic) -> Calibration:
    """Returns steps for about `seconds` seconds, split evenly among the numbers of concurrent requests."""
    rng = np.random.default_rng(0)
    levels: list[int] = [1 << power for power in range(config.scheduling.max_num_seqs.bit_length())]
    recorder, step_s = StepRecorder(), 0.0
    serve(_make_arrivals(1, step_s, config, rng), config, runner, SkippingClock(source), StepRecorder())  # warms up
    for num_requests in levels:
        end_s = source() + seconds / len(levels)
        while (left_s := end_s - source()) > 0:
            num_steps = len(recorder.steps)
            arrivals = _make_arrivals(num_requests, step_s, config, rng)
            serve(arrivals, config, runner, SkippingClock(source), recorder, left_s)
            if len(recorder.steps) > num_steps:  # none where the time ended at once
                step_s = float(np.median([step.seconds for step in recorder.steps[num_steps:]]))
    return Calibration.of(
        config,
        can_overlap=runner.can_overlap,
        num_pages=runner.num_pages,
        max_num_batched_tokens=runner.max_num_batched_tokens,
        steps=recorder.steps,
    )


def _make_arrivals(num_requests: int, step_s: float, config: Config, rng: np.random.Generator) -> list[Arrival]:
    """Returns requests of which a few arrive in each step, so that steps of all mixtures occur."""
    arrivals: list[Arrival] = []
    at_s, longest = 0.0, config.facts.max_model_len
    for _ in range(num_requests):
        num_output = min(int(rng.integers(SHORTEST_OUTPUT, LONGEST_OUTPUT, endpoint=True)), longest // 2)
        num_input = int(math.exp(rng.uniform(0, math.log(longest - num_output))))
        arrivals.append(Arrival(random_ids(rng, config.facts.vocab_size, num_input), num_output, at_s))
        at_s += float(rng.exponential(step_s / ARRIVALS_PER_STEP))
    return arrivals


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, 1 if the model cannot be run, 2 on bad usage."""
    parser = program_parser("calibrate", __doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("steps.json"), metavar="FILE", help="output file (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="X", help="duration of the measurement (default: %(default)g)"
    )
    options, flags = parser.parse_known_args(arguments)
    try:
        if not options.seconds > 0:
            raise UsageError("--seconds must be more than 0")
        sections: dict[str, Any] = dict(parse_flags(flags))
        config = build_config(sections)
        found = calibrate(config, load_runner(config, _report), options.seconds)
        model = fit(found.steps)
        options.out.write_bytes(msgspec.json.encode(found))
    except (SluiceError, OSError) as error:
        print(f"{PROGRAM} calibrate: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print(f"{options.out}: {len(found.steps):,} steps; {model.fit_text}")
    return 0


def _report(text: str, fraction: float | None) -> None:
    if fraction is None:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
