"""Divides the layers of a model among stages (`--pipeline-parallel`)."""

from functools import cache
from itertools import accumulate
from math import prod

from messages.errors import BootError
from scheduler_proc.computing.model.blocks.layer import layer_parameters
from scheduler_proc.computing.model.description import ModelDescription


def split_layers(model: ModelDescription, num_stages: int, counts: str = "auto") -> list[range]:
    """Returns the layers of each stage: as many as `counts` has (`12,20`), or those whose largest work is the least.

    Layers with a common cache are in the same stage, and so are those after the last one that stores anything. Raises
    `BootError` if that is impossible.
    """
    cuts, num_layers = find_cuts(model), len(model.layers)
    if counts != "auto":
        return _split_by_hand(counts, cuts, num_stages, num_layers)
    if len(cuts) < num_stages - 1:
        raise BootError(
            f"--pipeline-parallel {num_stages}: the model's {num_layers} layers are {len(cuts) + 1} stages at most"
        )
    before = [0, *accumulate(layer_costs(model))]

    @cache
    def split(end: int, num_parts: int) -> tuple[tuple[int, int], tuple[range, ...]]:
        """Returns the largest cost, the sum of the costs' squares, and the stages of the best split up to a layer."""
        if num_parts == 1:
            return (before[end], before[end] ** 2), (range(end),)
        found: list[tuple[tuple[int, int], tuple[range, ...]]] = []
        for cut in cuts[num_parts - 2 :]:
            if cut < end:
                (largest, squares), stages = split(cut, num_parts - 1)
                own = before[end] - before[cut]
                found.append(((max(largest, own), squares + own**2), (*stages, range(cut, end))))
        return min(found, key=lambda one: one[0])

    return list(split(num_layers, num_stages)[1])


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
            f"--stages {counts}: expected auto, or {num_stages} numbers (--pipeline-parallel) that add up to the "
            f"model's {num_layers} layers"
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
