"""The time of each step of a simulated run: the cost model's time, with the variation of the measured steps."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from random import Random

from extras.whatif.cost_model import CostModel, MeasuredStep, StepSize

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
        self.modelled_s = 0.0
        """The time of all steps so far as modelled: like CPU time, it does not vary."""
        self._follows_chunks = False

    def next_seconds(self, size: StepSize) -> float:
        """Returns the time of the next step, which has this size."""
        kind = self._model.kind_of(size)
        ratios = self._ratios.get((kind, self._follows_chunks)) or self._ratios.get((kind, None))
        self._follows_chunks = size.prefill_chunks > 0
        modelled_s = self._model.predict(size)
        self.modelled_s += modelled_s
        return modelled_s * (next(ratios) if ratios else 1.0)


def in_order(values: Sequence[float], rng: Random) -> Iterator[float]:
    """Yields the values one after the other, from a random place on, and again from the first after the last."""
    begin = rng.randrange(len(values))
    return cycle((*values[begin:], *values[:begin]))
