"""A library of our own, and launchers that use the references again after each test."""

from collections.abc import Iterator

import pytest

from kernels.cpu.library import unload_kernels


@pytest.fixture(autouse=True)
def form() -> Iterator[None]:
    """In place of the forms that the other kernels' tests run in."""
    yield
    unload_kernels()
