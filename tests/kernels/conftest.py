"""Every test runs with the plain-torch references and with the C kernels in each form that this processor runs."""

from collections.abc import Iterator

import pytest
import torch

from kernels.cpu.build import built_isas
from kernels.cpu.library import unload_kernels, use_library
from tests.kernels.c_library import built_library

# One thread computes: the tensors are small, and other processes want the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, params=["torch", *built_isas()])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the launchers use in this test: "torch", or the instruction set of the C kernels."""
    if request.param == "torch":
        unload_kernels()
        yield request.param
        return
    if use_library(built_library(), request.param) != request.param:
        pytest.skip(f"this processor does not run {request.param}")
    yield request.param
    unload_kernels()
