"""The predicted outcome of a setting: latencies, throughput, preemptions and cache hits of one simulated run."""

from collections.abc import Sequence
from functools import partial
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from extras.whatif.calibration import Calibration
from extras.whatif.cost_model import CostModel
from extras.whatif.drive import ServedRequests, serve
from extras.whatif.settings import Setting, make_config
from extras.whatif.simulation import SimulatedRunner
from extras.whatif.traces import Arrival
from extras.whatif.variation import VaryingSteps, in_order
from scheduler_proc.step_times import StepTimes

EXTRAPOLATED = 1.25
"""A step that exceeds the largest measured one by this factor is reported."""


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of one latency over all requests, or over all gaps between tokens, in milliseconds; 0 without any."""

    p50_ms: float
    p90_ms: float
    p99_ms: float


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a setting. `waits` counts requests that waited for a row, by what the queue's first lacked."""

    setting: Setting
    num_requests: int
    num_steps: int
    seconds: float
    ttft: Quantiles
    inter_token: Quantiles
    e2e: Quantiles
    requests_per_s: float
    output_tokens_per_s: float
    num_preemptions: int
    prefix_hit_rate: float
    """The fraction of prompt tokens that were found in the prefix cache."""
    waits: dict[str, int]
    extrapolated: str = ""
    """Names the steps that were larger than any measured one; empty if there were none."""


def simulate(arrivals: Sequence[Arrival], calibration: Calibration, model: CostModel, setting: Setting) -> Outcome:
    """Runs the arrivals under a setting on a simulated clock. The same input gives the same outcome.

    Each engine has the setting and runs independently, with its own requests.
    """
    if not all(arrival.output_ids for arrival in arrivals):
        calibration = msgspec.structs.replace(calibration, num_speculative_tokens=0)  # no tokens to look up
    config = make_config(setting, calibration)
    parts: list[ServedRequests] = []
    runners: list[SimulatedRunner] = []
    for engine in sorted({arrival.engine for arrival in arrivals}):
        own = [arrival for arrival in arrivals if arrival.engine == engine]
        rng = Random(0)
        steps = VaryingSteps(model, calibration.steps, rng)
        runners.append(SimulatedRunner(steps.next_seconds, setting, calibration.can_overlap, own))
        clock, jitter_s = runners[-1].clock, in_order(calibration.jitter_s, rng)
        clock.cpu_seconds = partial(getattr, steps, "modelled_s")
        parts.append(serve(own, config, runners[-1], clock, StepTimes(), draw_jitter_s=partial(next, jitter_s)))
    served = ServedRequests.joined(parts)
    assert not np.isnan(served.last_s).any(), "a request got no token"
    outcome = summarize(served, setting, calibration.pipeline_s)
    return msgspec.structs.replace(outcome, extrapolated=_describe_extrapolation(runners, calibration))


def summarize(served: ServedRequests, setting: Setting, pipeline_s: float) -> Outcome:
    """Returns the figures of a run, including the time of a request outside of the scheduler."""
    gauges, num_requests = served.gauges, len(served.arrived_s)
    seconds = float(served.last_s.max() - served.arrived_s.min())
    return Outcome(
        setting=setting,
        num_requests=num_requests,
        num_steps=int(gauges["steps"]),
        seconds=seconds,
        ttft=quantiles(served.first_s - served.arrived_s + pipeline_s),
        inter_token=quantiles(served.gaps_s),
        e2e=quantiles(served.last_s - served.arrived_s + pipeline_s),
        requests_per_s=num_requests / seconds,
        output_tokens_per_s=gauges["output_tokens"] / seconds,
        num_preemptions=int(gauges["preemptions"]),
        prefix_hit_rate=gauges["prefix_hit_tokens"] / gauges["prompt_tokens"],
        waits=dict(served.waits),
    )


def _describe_extrapolation(runners: Sequence[SimulatedRunner], calibration: Calibration) -> str:
    sizes = [step.size for step in calibration.steps]
    measured = max(size.decode_rows for size in sizes), max(size.decode_rows + size.prefill_tokens for size in sizes)
    simulated = max(runner.max_rows for runner in runners), max(runner.max_tokens_per_step for runner in runners)
    return ", ".join(
        f"steps of {most} {what}, measured are up to {known}"
        for what, most, known in zip(("rows", "tokens"), simulated, measured, strict=True)
        if most > EXTRAPOLATED * known
    )


def quantiles(seconds: NDArray[np.float64]) -> Quantiles:
    values = np.quantile(seconds, (0.5, 0.9, 0.99)) if len(seconds) else np.zeros(3)
    return Quantiles(*(round(float(value) * 1e3, 3) for value in values))
