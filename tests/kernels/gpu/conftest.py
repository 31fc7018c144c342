"""Every test runs with the Triton kernels, and every tensor that they allocate is poisoned."""

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.gpu.triton_in_use import DEVICE, triton_in_use

# It imports the messages, which a machine that only measures kernels may lack.
collect_ignore = [] if find_spec("msgspec") else ["test_sampler.py"]

# One thread computes: the tensors are small, and other processes want the cores.
torch.set_num_threads(1)


@pytest.fixture
def device() -> str:
    """Where the tensors of a test are."""
    return DEVICE


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Operations use the Triton kernels; counts the calls of each operation's kernel.

    Their allocations are filled with NaN (integers: the largest), which shows elements that no kernel writes.
    """
    with triton_in_use() as taken:
        poison_allocations(monkeypatch)
        yield taken


def poison_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: Any, **named: Any) -> Tensor:
            tensor = allocate(*arguments, **named)
            if tensor.dtype.is_floating_point:
                return tensor.fill_(float("nan"))
            return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)

        return call

    with torch.device("meta"):
        torch.empty(0)  # at the first use torch notes which functions take the device: these, not those below
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
