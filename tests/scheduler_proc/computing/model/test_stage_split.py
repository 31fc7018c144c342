"""The layers of stages: the best of all splits, tried one by one, for machines of any speed and memory."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, pairwise

import pytest

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.stage_split import Machine, Sizes, find_cuts, layer_costs, split_layers
from tests.scheduler_proc.computing.model.families.real_configs import REAL

SMALL, LARGE = "SmolLM2 135M", "Llama 3.3 70B"
UNEQUAL = [SMALL, "Gemma 4 E2B", "LFM2 8B-A1B"]
"""Equal layers; those of one cache in one stage; experts and states."""


def describe(name: str) -> ModelDescription:
    hf_config = HfConfig(REAL[name].config)
    return find_family(hf_config).describe(hf_config, 2048)


def list_splits(model: ModelDescription, num_stages: int) -> Iterator[list[range]]:
    for cuts in combinations(find_cuts(model), num_stages - 1):
        bounds = [0, *cuts, len(model.layers)]
        yield [range(*pair) for pair in pairwise(bounds)]


def fits(stages: Sequence[range], machines: Sequence[Machine], sizes: Sizes) -> bool:
    for _, of_machine in groupby(zip(stages, machines, strict=True), key=lambda pair: pair[1].memory):
        held = list(of_machine)
        num_bytes = sum(sizes.of_layers[layer] for layers, _ in held for layer in layers) + len(held) * sizes.of_step
        if num_bytes > held[0][1].free_bytes:
            return False
    return True


@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.parametrize("counts", ["auto", "one-stream"])
def test_the_split_is_the_best_that_fits(name: str, counts: str) -> None:
    """Some stages share the memory of a machine; sometimes nothing fits, and memory does not count."""
    model, chooser = describe(name), random.Random(3)
    costs, num_limited = layer_costs(model), 0

    def rank(stages: Sequence[range], machines: Sequence[Machine]) -> tuple[int, ...]:
        times = [
            sum(costs[layer] for layer in layers) * machine.slowness
            for layers, machine in zip(stages, machines, strict=True)
        ]
        cost = max(times), sum(time**2 for time in times), sum(times)
        return cost if counts == "auto" else cost[::-1]

    for _ in range(40):
        num_stages = chooser.choice([2, 3])
        sizes = Sizes([chooser.randrange(50, 150) for _ in model.layers], 30)
        total, machines, memory = sum(sizes.of_layers), list[Machine](), 0
        for _ in range(num_stages):
            memory += chooser.random() < 0.7
            free_bytes = next((one.free_bytes for one in machines if one.memory == memory), None)
            free_bytes = free_bytes or int(total * chooser.uniform(0.3, 1.0))
            machines.append(Machine(chooser.choice([64, 64, 90, 200]), memory, free_bytes))
        splits = list(list_splits(model, num_stages))
        fitting = [stages for stages in splits if fits(stages, machines, sizes)]
        num_limited += 0 < len(fitting) < len(splits)
        best = min(rank(stages, machines) for stages in fitting or splits)
        found = split_layers(model, num_stages, counts, machines, sizes)
        assert found in (fitting or splits)
        assert rank(found, machines)[0] == best[0]
    assert num_limited >= 3


def test_alike_machines_get_equal_work_and_a_slow_one_fewer_layers() -> None:
    model = describe(SMALL)
    equal = split_layers(model, 2)
    assert split_layers(model, 2, "auto", [Machine(64), Machine(64)]) == equal
    assert split_layers(model, 2, "one-stream") == equal, "the sum is the same, so the slowest stage decides"
    slower = [split_layers(model, 2, "auto", [Machine(64), Machine(factor * 64)]) for factor in (1, 2, 3)]
    sizes = [len(stages[-1]) for stages in slower]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    (_, last) = split_layers(model, 2, "one-stream", [Machine(64), Machine(128)])
    assert len(last) == 1, "one stream is fastest on the faster machine"


def test_many_layers_and_stages_are_split_at_once() -> None:
    """All splits of 80 layers into 8 stages would be 3 billion."""
    model = describe(LARGE)
    machines = [Machine(64 + stage, stage, 10**9) for stage in range(8)]
    stages = split_layers(model, 8, "auto", machines, Sizes([10**6] * len(model.layers)))
    assert sum(map(len, stages)) == len(model.layers)


def test_what_is_no_split_is_refused() -> None:
    with pytest.raises(BootError, match="expected auto, one-stream, or 2 numbers"):
        split_layers(describe(SMALL), 2, "fast")
