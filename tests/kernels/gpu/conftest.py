"""Every test runs with the Triton forms: compiled on a CUDA device where there is one, else interpreted on the CPU."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.gpu import forms
from tests.kernels.cases import DEVICES

DEVICE = DEVICES[-1]

# One thread computes: the tensors are small, and other processes want the cores.
torch.set_num_threads(1)


@pytest.fixture
def device() -> str:
    """Where the tensors of a test are."""
    return DEVICE


@pytest.fixture(autouse=True)
def form(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Launchers take the Triton forms; counts, by operation, how often one was taken.

    Every tensor that they allocate is filled with NaN (integers: the largest), so that what no kernel writes is seen.
    """
    triton = pytest.importorskip("triton", reason="needs triton")
    is_interpreted = triton.knobs.runtime.interpret
    if is_interpreted:
        pytest.importorskip("tests.kernels.gpu.interpreter_bf16").make_bf16_right()
    if is_interpreted != (DEVICE == "cpu"):
        pytest.skip(f"torch computes on {DEVICE}, and TRITON_INTERPRET is {int(is_interpreted)}")
    forms.load_forms(DEVICE)
    taken: Counter[str] = Counter()
    for name, found in list(forms._forms.items()):
        forms._forms[name] = counted(name, found, taken)
    poison_allocations(monkeypatch)
    # What is masked may overflow or be NaN, as on a GPU.
    with np.errstate(all="ignore"):
        yield taken
    forms.unload_forms()


def counted(name: str, found: forms.Form, taken: Counter[str]) -> forms.Form:
    def call(*arguments: Any, **named: Any) -> Any:
        taken[name] += 1
        return found(*arguments, **named)

    return call


def poison_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: Any, **named: Any) -> Tensor:
            tensor = allocate(*arguments, **named)
            if tensor.dtype.is_floating_point:
                return tensor.fill_(float("nan"))
            return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)

        return call

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
