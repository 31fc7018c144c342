"""A library of our own, and launchers that use the references again after each test."""

from collections.abc import Iterator

import pytest

from kernels.cpu.library import unload_kernels


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    """In place of the backends that the other kernels' tests run with."""
    yield
    unload_kernels()
