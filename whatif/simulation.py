"""Runs arrivals against the scheduler on a simulated clock: each step takes what the cost model says."""

from messages.steps import Batch, ForwardOutput
from whatif.cost_model import CostModel, size_of_step


class SimulatedClock:
    """Stands still unless it is told to go on."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def wait_until(self, at_s: float) -> None:
        self._now_s = max(self._now_s, at_s)


class SimulatedStep:
    """A launched step that ends at `end_s`."""

    def __init__(self, batch: Batch, end_s: float, clock: SimulatedClock):
        self._batch = batch
        self._end_s = end_s
        self._clock = clock

    def result(self) -> ForwardOutput:
        """Lets time pass until the step has ended; every next token is 0."""
        self._clock.wait_until(self._end_s)
        return ForwardOutput(self._batch.step_id, bytes(4 * self._batch.num_sampled))


class SimulatedRunner:
    """A device that runs steps one after another, each as long as the model says."""

    degraded = ""
    drafter = None

    def __init__(self, model: CostModel, num_pages: int, max_num_batched_tokens: int, can_overlap: bool):
        self.num_pages = num_pages
        self.max_num_batched_tokens = max_num_batched_tokens
        self.can_overlap = can_overlap
        self.clock = SimulatedClock()
        self.most_rows = 0
        self.most_tokens = 0
        """Of one step so far."""
        self._model = model
        self._free_s = 0.0

    def launch(self, batch: Batch) -> SimulatedStep:
        size = size_of_step(batch)
        self.most_rows = max(self.most_rows, size.decode_rows)
        self.most_tokens = max(self.most_tokens, size.decode_rows + size.prefill_tokens)
        self._free_s = max(self._free_s, self.clock()) + self._model.predict(size)
        return SimulatedStep(batch, self._free_s, self.clock)
