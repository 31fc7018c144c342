"""The predicted outcome of a setting: latencies, throughput, preemptions and cache hits of one simulated run.

The time of each step of a simulated run: the cost model's time, with the variation of the measured steps.

Runs arrivals against the scheduler on a simulated clock, on which a step's time is a function of its size.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from extras.whatif.calibration import Calibration
from extras.whatif.cost_model import CostModel, MeasuredStep, StepSize, size_of_step
from extras.whatif.drive import ServedRequests, SkippingClock, serve
from extras.whatif.settings import Setting, make_config
from extras.whatif.traces import Arrival
from messages.columns import INT32, INT64, unpack_int64
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.step_times import StepTimes


class SimulatedStep:
    """A launched step that ends at `end_s`."""

    has_ended = False

    def __init__(self, output: ForwardOutput, end_s: float, clock: SkippingClock):
        self._output = output
        self._end_s = end_s
        self._clock = clock

    def result(self) -> ForwardOutput:
        """Lets time pass until the step has ended."""
        self._clock.wait_until(self._end_s)
        return self._output


class SimulatedRunner:
    """A device that runs steps one after another, each for the seconds that `next_seconds` gives for its size.

    The next tokens are those of `arrivals`, whose uids are their indices; 0 if they are not known.
    """

    can_plan_ahead = False
    num_stages = 1
    degraded = ""
    placement: dict[str, str] = {}  # noqa: RUF012 (never written)
    memory_gauges = dict[str, float]
    draft_runner = None
    page_memory = page_store = windows = states = span_rows = None

    def __init__(
        self,
        next_seconds: Callable[[StepSize], float],
        setting: Setting,
        can_overlap: bool,
        arrivals: Sequence[Arrival] = (),
    ):
        self.num_pages = setting.num_pages
        self.max_num_batched_tokens = setting.max_num_batched_tokens
        self.can_overlap = can_overlap
        self.clock = SkippingClock(lambda: 0.0)
        self.max_rows = 0
        self.max_tokens_per_step = 0
        """The parts of one step so far."""
        self._next_seconds = next_seconds
        self._free_s = 0.0
        self._arrivals: Sequence[Arrival] = arrivals
        self._has_tokens = any(arrival.output_ids for arrival in arrivals)

    def launch(self, batch: Batch) -> SimulatedStep:
        size = size_of_step(batch)
        self.max_rows = max(self.max_rows, size.decode_rows)
        self.max_tokens_per_step = max(self.max_tokens_per_step, size.decode_rows + size.prefill_tokens)
        self._free_s = max(self._free_s, self.clock()) + self._next_seconds(size)
        tokens = self._next_tokens(batch) if self._has_tokens else bytes(4 * batch.num_sampled)
        return SimulatedStep(ForwardOutput(batch.step_id, tokens), self._free_s, self.clock)

    def _next_tokens(self, batch: Batch) -> bytes:
        ends = np.cumsum(np.frombuffer(batch.query_lens, INT32))
        rows = np.searchsorted(ends, np.frombuffer(batch.sample_tokens, INT32), side="right")
        uids: list[int] = np.frombuffer(batch.uids, INT64)[rows].tolist()
        tokens: array[int] = array(INT32)
        for uid, position in zip(uids, unpack_int64(batch.sample_positions), strict=True):
            arrival = self._arrivals[uid]
            begin = 4 * (position - len(arrival.prompt_ids))
            tokens.frombytes(arrival.output_ids[begin : begin + 4] or bytes(4))
        return tokens.tobytes()


LEAST_STEPS = 8
"""A kind of step with fewer measurements, after a step with chunks or without, has no variation of its own."""


class VaryingSteps:
    """Multiplies the model's time by measured / modelled of measured steps, in the order in which they ran.

    Steps are slow or fast for seconds at a time, so ratios in their order lengthen queues as they did, and ratios
    drawn one by one do not. Each kind of step (`CostModel.kind_of`) has its own, since small ones vary more; and a step
    of decode rows behind one with chunks has those of such steps, which find their weights out of the caches.
    """

    def __init__(self, model: CostModel, steps: Sequence[MeasuredStep], rng: Random):
        ratios: dict[tuple[int, bool | None], list[float]] = defaultdict(list)
        follows_chunks = False
        for step in steps:
            if (modelled_s := model.predict(step.size)) > 0:
                for what_is_before in (follows_chunks, None):
                    ratios[model.kind_of(step.size), what_is_before].append(step.seconds / modelled_s)
            follows_chunks = step.size.prefill_chunks > 0
        self._ratios = {
            key: in_order(some, rng)
            for key, some in ratios.items()
            if key[1] is None or (key[0] and len(some) >= LEAST_STEPS)
        }
        self._model = model
        self._follows_chunks = False

    def next_seconds(self, size: StepSize) -> float:
        """Returns the time of the next step, which has this size."""
        kind = self._model.kind_of(size)
        ratios = self._ratios.get((kind, self._follows_chunks)) or self._ratios.get((kind, None))
        self._follows_chunks = size.prefill_chunks > 0
        return self._model.predict(size) * (next(ratios) if ratios else 1.0)


def in_order(values: Sequence[float], rng: Random) -> Iterator[float]:
    """Yields the values one after the other, from a random place on, and again from the first after the last."""
    begin = rng.randrange(len(values))
    return cycle((*values[begin:], *values[:begin]))


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
    config = make_config(setting, calibration)
    parts: list[ServedRequests] = []
    runners: list[SimulatedRunner] = []
    for engine in sorted({arrival.engine for arrival in arrivals}):
        own = [arrival for arrival in arrivals if arrival.engine == engine]
        rng = Random(0)
        steps = VaryingSteps(model, calibration.steps, rng)
        runners.append(SimulatedRunner(steps.next_seconds, setting, calibration.can_overlap, own))
        draw_jitter_s = partial(next, in_order(calibration.jitter_s, rng))
        parts.append(serve(own, config, runners[-1], runners[-1].clock, StepTimes(), draw_jitter_s=draw_jitter_s))
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
