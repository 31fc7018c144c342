"""Work is done when it is submitted, and no memory is prefaulted meanwhile."""

from typing import Any

import pytest
import torch

from scheduler_proc.computing.cpu.device import CpuDevice


class NotedPrefault:
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


def test_no_memory_is_prefaulted_while_work_is_done() -> None:
    device, prefault = CpuDevice(), NotedPrefault()
    noted: Any = prefault
    device.prefault = noted
    seen: list[bool] = []

    def work() -> list[torch.Tensor]:
        seen.append(prefault.is_stepping)
        return []

    device.submit(work)
    assert (seen, prefault.is_stepping) == ([True], False)


def test_work_that_fails_raises_where_it_is_submitted() -> None:
    device, prefault = CpuDevice(), NotedPrefault()
    noted: Any = prefault
    device.prefault = noted

    def fail() -> list[torch.Tensor]:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError):
        device.submit(fail)
    assert not prefault.is_stepping
