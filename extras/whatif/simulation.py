"""Runs arrivals against the scheduler on a simulated clock, on which a step's time is a function of its size."""

from array import array
from collections.abc import Callable, Sequence

import numpy as np

from extras.whatif.cost_model import StepSize, size_of_step
from extras.whatif.drive import SkippingClock
from extras.whatif.settings import Setting
from extras.whatif.traces import Arrival
from messages.columns import INT32, INT64, unpack_int64
from messages.ring.steps import Batch, ForwardOutput


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
