"""Work is done when it is submitted or, if threads have begun it, when its result is requested."""

from typing import Any

import pytest
import torch

from scheduler_proc.computing.backends.cpu.device import CpuDevice


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


def test_the_population_is_notified_while_work_is_done() -> None:
    device, population = CpuDevice(), NotedPopulation()
    recorded: Any = population
    device.population = recorded
    seen: list[bool] = []

    def work() -> list[torch.Tensor]:
        seen.append(population.is_stepping)
        return []

    device.submit(work)
    assert (seen, population.is_stepping) == ([True], False)


def test_work_that_fails_raises_where_it_is_submitted() -> None:
    device, population = CpuDevice(), NotedPopulation()
    recorded: Any = population
    device.population = recorded

    def fail() -> list[torch.Tensor]:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError):
        device.submit(fail)
    assert not population.is_stepping


def test_work_that_threads_have_begun_is_done_when_someone_waits_for_it() -> None:
    device, notes = CpuDevice(), list[str]()

    def work(name: str) -> list[torch.Tensor]:
        notes.append(name)
        return [torch.ones(1)]

    device.has_begun = True
    begun = device.submit(lambda: work("begun"))
    assert not device.has_begun, "of one piece of work"
    assert (notes, begun.has_ended) == ([], False)
    result = begun.wait()
    assert (notes, begun.has_ended) == (["begun"], True)
    assert begun.wait() is result
    done = device.submit(lambda: work("done"))
    assert (notes, done.has_ended) == (["begun", "done"], True)


def test_what_is_submitted_behind_such_work_comes_behind_it() -> None:
    """Copies of pages are: what the step writes must be there."""
    device, notes = CpuDevice(), list[str]()

    def work(name: str) -> list[torch.Tensor]:
        notes.append(name)
        if name == "step" and notes.count(name) == 1:
            raise MemoryError("no memory")
        return []

    device.has_begun = True
    step = device.submit(lambda: work("step"))
    device.submit(lambda: work("copy"))
    assert notes == ["step", "copy"]
    assert not step.has_ended, "it has failed, and who waits for it must hear of it"
    device.submit(lambda: work("copy"))
    assert notes == ["step", "copy", "copy"]
    step.wait()
    assert notes[3:] == ["step"]
