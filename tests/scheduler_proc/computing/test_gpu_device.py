from typing import Any

import pytest
import torch

from scheduler_proc.computing.gpu_device import _OnItsWay


class BrokenEvent:
    """What an event is after a kernel has gone astray."""

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_gpu_that_has_failed_ends_the_process() -> None:
    """No handler of `Exception` may take it for the failure of a step: all later steps would fail as well."""
    event: Any = BrokenEvent()
    with pytest.raises(SystemExit, match="the GPU has failed: CUDA error: an illegal memory access"):
        _OnItsWay(torch.empty(1), event).wait()
