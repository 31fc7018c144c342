"""Memory is there before it is written, and what it holds stays as it is."""

import ctypes
import mmap

import pytest
import torch
from torch import Tensor

from kernels.cpu.huge_pages import empty_huge
from scheduler_proc.computing.cpu import prefault
from scheduler_proc.computing.cpu.prefault import Prefault

NUM_PAGES, PAGE_ELEMENTS = 64, 1 << 18
"""A page of a layer takes 1 MB."""


def wait(ahead: Prefault) -> None:
    thread = ahead._thread
    assert thread is not None
    thread.join(60.0)
    assert not thread.is_alive()


def num_resident(tensor: Tensor) -> int:
    """Returns how many of the tensor's pages have all their memory."""
    vector = (ctypes.c_ubyte * (tensor.nbytes // mmap.PAGESIZE))()
    first = tensor.data_ptr()
    assert first % mmap.PAGESIZE == 0
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(tensor.nbytes), vector) == 0
    pages = torch.frombuffer(vector, dtype=torch.uint8).view(NUM_PAGES, -1) & 1
    return int(pages.all(dim=1).sum())


@pytest.fixture
def layers() -> list[Tensor]:
    return [empty_huge((NUM_PAGES, PAGE_ELEMENTS), torch.float32) for _ in range(2)]


def test_the_next_pages_have_memory(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "AHEAD_BYTES", 20 << 20)
    ahead = Prefault(layers, NUM_PAGES)
    assert ahead._thread is None
    layers[0][3] = 7.0
    ahead.use(3)
    wait(ahead)
    if ahead._num_ready == NUM_PAGES:
        pytest.skip("this system gives no memory ahead")
    assert 14 <= ahead._num_ready <= 16
    assert all(10 <= num_resident(layer) < 30 for layer in layers)
    first = ahead._thread
    ahead.use(4)  # as much is left as makes a thread worth while
    assert ahead._thread is first
    ahead.use(40)
    wait(ahead)
    assert ahead._num_ready >= 51
    ahead.use(NUM_PAGES - 1)
    wait(ahead)
    assert ahead._num_ready == NUM_PAGES
    assert bool((layers[0][3] == 7.0).all())


def test_no_memory_is_asked_for_while_a_step_runs(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "AHEAD_BYTES", 20 << 20)
    ahead = Prefault(layers, NUM_PAGES)
    with ahead.step():
        ahead.use(3)
        assert ahead._thread is not None
        ahead._thread.join(0.3)
        assert ahead._thread.is_alive()
        assert all(num_resident(layer) == 0 for layer in layers)
    wait(ahead)
    assert ahead._num_ready >= 14


def test_a_system_that_refuses_is_not_asked_again(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "POPULATE_WRITE", 12345)
    ahead = Prefault(layers, NUM_PAGES)
    ahead.use(0)
    wait(ahead)
    first = ahead._thread
    ahead.use(30)
    assert ahead._thread is first
