"""Work is done when it is submitted, and the thread that populates pages knows when."""

from typing import Any

import pytest
import torch

from scheduler_proc.computing.cpu.device import CpuDevice


class NotedPopulation:
    """Notes when a step begins and ends."""

    def __init__(self) -> None:
        self.is_stepping = False

    def __enter__(self) -> None:
        self.is_stepping = True

    def __exit__(self, *_: object) -> None:
        self.is_stepping = False


def test_work_is_done_at_once() -> None:
    tokens = [torch.ones(1)]
    assert CpuDevice().submit(lambda: tokens).wait() is tokens


def test_the_population_is_told_while_work_is_done() -> None:
    device, population = CpuDevice(), NotedPopulation()
    noted: Any = population
    device.population = noted
    seen: list[bool] = []

    def work() -> list[torch.Tensor]:
        seen.append(population.is_stepping)
        return []

    device.submit(work)
    assert (seen, population.is_stepping) == ([True], False)


def test_work_that_fails_raises_where_it_is_submitted() -> None:
    device, population = CpuDevice(), NotedPopulation()
    noted: Any = population
    device.population = noted

    def fail() -> list[torch.Tensor]:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError):
        device.submit(fail)
    assert not population.is_stepping
