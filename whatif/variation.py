"""What each step of a simulated run takes: what the cost model says, varied as the measured steps were."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from random import Random

from whatif.cost_model import CostModel, MeasuredStep, StepSize


class VaryingSteps:
    """Multiplies what the model says by measured / modelled of measured steps, in the order in which they ran.

    Steps are slow or fast for seconds at a time, so ratios in their order lengthen queues as they did, and ratios
    drawn one by one do not. Each kind of step (`CostModel.kind_of`) has its own, since small ones vary more.
    """

    def __init__(self, model: CostModel, steps: Sequence[MeasuredStep], rng: Random):
        ratios: dict[int, list[float]] = defaultdict(list)
        for step in steps:
            if (modelled_s := model.predict(step.size)) > 0:
                ratios[model.kind_of(step.size)].append(step.seconds / modelled_s)
        self._ratios = {kind: in_order(some, rng) for kind, some in ratios.items()}
        self._model = model

    def next_seconds(self, size: StepSize) -> float:
        """Returns what the next step takes, which has this size."""
        ratios = self._ratios.get(self._model.kind_of(size))
        return self._model.predict(size) * (next(ratios) if ratios else 1.0)


def in_order(values: Sequence[float], rng: Random) -> Iterator[float]:
    """Yields the values one after the other, from a random place on, and again from the first after the last."""
    begin = rng.randrange(len(values))
    return cycle((*values[begin:], *values[:begin]))
