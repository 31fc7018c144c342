from typing import Any

import pytest
import torch

from scheduler_proc.computing.gpu.device import CudaDevice, _OnItsWay


class BrokenEvent:
    """What an event is after a kernel has gone astray."""

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_gpu_that_has_failed_ends_the_process() -> None:
    """No handler of `Exception` may take it for the failure of a step: all later steps would fail as well."""
    event: Any = BrokenEvent()
    with pytest.raises(SystemExit, match="the GPU has failed: CUDA error: an illegal memory access"):
        _OnItsWay(torch.empty(1), [], event).wait()


def fail(*_: object) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_an_earlier_fault_that_shows_at_a_launch_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the step that is launched then, and each of its rows when they are run apart, would be blamed for it."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    device = CudaDevice(torch.device("cuda:0"))
    work: Any = fail
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(SystemExit, match="the GPU has failed: CUDA error: an illegal memory access"):
        device.submit(work)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        device.submit(work)
