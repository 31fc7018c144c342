"""Divides the layers of a model among stages (`--pipeline-parallel`)."""

import sys
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from messages.errors import BootError
from scheduler_proc.computing.model.blocks.layer import layer_parameters
from scheduler_proc.computing.model.description import ModelDescription

MEASURED = "auto", "one-stream"
"""The values of `--stages` with which the layers are divided by what machines can do."""


class Machine(NamedTuple):
    """What a stage is computed with. `slowness`: the time of a weight, in any unit that all stages share.

    Neighbours with the same `memory` share `free_bytes`.
    """

    slowness: int = 1
    memory: int = 0
    free_bytes: int = sys.maxsize


class Sizes(NamedTuple):
    """The bytes of each layer, the embedding's and the head's included, and those that each stage takes besides."""

    of_layers: Sequence[int]
    of_step: int = 0


def split_layers(
    model: ModelDescription,
    num_stages: int,
    counts: str = "auto",
    machines: Sequence[Machine] = (),
    sizes: Sizes | None = None,
) -> list[range]:
    """Returns the layers of each stage: as many as `counts` has (`12,20`), or those of the best split.

    That is the split whose slowest stage takes the least time or, with `one-stream`, all stages together; if the memory
    has room for none, the best one without that limit. Layers with a common cache are in the same stage, and so are
    those after the last one that stores anything. Raises `BootError` if that is impossible.
    """
    cuts, num_layers = find_cuts(model), len(model.layers)
    if counts not in MEASURED:
        return _split_by_hand(counts, cuts, num_stages, num_layers)
    if len(cuts) < num_stages - 1:
        raise BootError(
            f"--pipeline-parallel {num_stages}: the model's {num_layers} layers are {len(cuts) + 1} stages at most"
        )
    machines = machines or [Machine()] * num_stages
    best = _Splits(model, cuts, machines, sizes, adds_up=counts == "one-stream").find(
        num_layers, num_layers, num_stages
    )
    return list(best.stages) if best is not None else split_layers(model, num_stages, counts, machines)


class _Split(NamedTuple):
    """Stages up to a layer. `cost` has the longest time, the sum of the squares of all times, and their sum."""

    cost: tuple[int, int, int]
    stages: tuple[range, ...]


class _Splits:
    """The best splits of a model into stages on these machines, found from the first layer on."""

    def __init__(
        self,
        model: ModelDescription,
        cuts: list[int],
        machines: Sequence[Machine],
        sizes: Sizes | None,
        *,
        adds_up: bool,
    ):
        self._cuts, self._machines, self._adds_up = cuts, machines, adds_up
        self._weights_before = [0, *accumulate(layer_costs(model))]
        self._bytes_before = None if sizes is None else [0, *accumulate(sizes.of_layers)]
        self._step_bytes = 0 if sizes is None else sizes.of_step
        self._found: dict[tuple[int, int, int], _Split | None] = {}

    def find(self, end: int, machine_end: int, num_stages: int, num_on_machine: int = 1) -> _Split | None:
        """Returns the best split of the layers before `end`; `None` if the memory has room for none.

        The machine of its last stage has the layers up to `machine_end`, in `num_on_machine` stages so far.
        """
        key = end, machine_end, num_stages
        if key not in self._found:
            begins = self._cuts[num_stages - 2 :] if num_stages > 1 else [0]
            splits = [self._extend(begin, *key, num_on_machine) for begin in begins if begin < end]
            self._found[key] = min(filter(None, splits), key=self._rank, default=None)
        return self._found[key]

    def _extend(self, begin: int, end: int, machine_end: int, num_stages: int, num_on_machine: int) -> _Split | None:
        """Returns the best split whose last stage begins with this layer."""
        machine, before = self._machines[num_stages - 1], _Split((0, 0, 0), ())
        shares = num_stages > 1 and self._machines[num_stages - 2].memory == machine.memory
        if not shares and self._bytes_before is not None:
            num_bytes = self._bytes_before[machine_end] - self._bytes_before[begin]
            if num_bytes + num_on_machine * self._step_bytes > machine.free_bytes:
                return None
        if num_stages > 1:
            place = (machine_end, num_stages - 1, num_on_machine + 1) if shares else (begin, num_stages - 1)
            found = self.find(begin, *place)
            if found is None:
                return None
            before = found
        time = (self._weights_before[end] - self._weights_before[begin]) * machine.slowness
        longest, squares, total = before.cost
        return _Split((max(longest, time), squares + time**2, total + time), (*before.stages, range(begin, end)))

    def _rank(self, split: _Split) -> tuple[int, ...]:
        return split.cost[::-1] if self._adds_up else split.cost


def find_cuts(model: ModelDescription) -> list[int]:
    """Returns the layers with which a stage may begin."""
    shared = [
        (mixer.kv_layer, index)
        for index, layer in enumerate(model.layers)
        for mixer in layer.mixers
        if mixer.kv_layer is not None
    ]
    cuts = range(1, model.last_storing + 1)
    return [cut for cut in cuts if not any(first < cut <= last for first, last in shared)]


def _split_by_hand(counts: str, cuts: list[int], num_stages: int, num_layers: int) -> list[range]:
    try:
        sizes = [int(count) for count in counts.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) != num_stages or sum(sizes) != num_layers or min(sizes) < 1:
        raise BootError(
            f"--stages {counts}: expected auto, one-stream, or {num_stages} numbers (--pipeline-parallel) that add up "
            f"to the model's {num_layers} layers"
        )
    stages, begin = list[range](), 0
    for size in sizes:
        if begin and begin not in cuts:
            raise BootError(
                f"--stages {counts}: no stage can begin with layer {begin}, which needs what an earlier layer stores; "
                f"possible are {', '.join(map(str, cuts))}"
            )
        stages.append(range(begin, begin + size))
        begin += size
    return stages


def layer_costs(model: ModelDescription) -> list[int]:
    """Returns by how many weights each layer multiplies a token; the head's are those of the last layer, too."""
    size, costs = model.hidden_size, list[int]()
    for index, layer in enumerate(model.layers):
        # There is a copy of a token's input for each expert that it goes to.
        num_chosen = 0 if layer.mlp is None else layer.mlp.room_sizes(size).get("copies", 0) // size
        parameters = layer_parameters(f"layers.{index}", layer, size)
        counts = [
            prod(parameter.shape) * num_chosen // parameter.num_stacked
            if parameter.role == "experts"
            else prod(parameter.shape)
            for parameter in parameters
        ]
        costs.append(sum(counts))
    costs[-1] += model.vocab_size * size
    return costs
