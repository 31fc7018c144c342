"""Memory is there before it is written, and what it holds stays as it is."""

import ctypes
import gc
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu.huge_pages import empty_huge
from scheduler_proc.computing.cpu import prefault
from scheduler_proc.computing.cpu.prefault import Prefault

ROOT = Path(__file__).resolve().parents[4]
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
    ahead.use(3, 1)
    wait(ahead)
    if ahead._num_ready == NUM_PAGES:
        pytest.skip("this system gives no memory ahead")
    assert 14 <= ahead._num_ready <= 16
    assert all(10 <= num_resident(layer) < 30 for layer in layers)
    first = ahead._thread
    ahead.use(4, 1)  # as much is left as makes a thread worth while
    assert ahead._thread is first
    ahead.use(40, 1)
    wait(ahead)
    assert ahead._num_ready >= 51
    ahead.use(NUM_PAGES - 1, 1)
    wait(ahead)
    assert ahead._num_ready == NUM_PAGES
    assert bool((layers[0][3] == 7.0).all())


def test_no_memory_is_asked_for_while_a_step_runs(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "AHEAD_BYTES", 20 << 20)
    ahead = Prefault(layers, NUM_PAGES)
    with ahead:
        ahead.use(3, 1)
        assert ahead._thread is not None
        ahead._thread.join(0.3)
        assert ahead._thread.is_alive()
        assert all(num_resident(layer) == 0 for layer in layers)
    wait(ahead)
    assert ahead._num_ready >= 14


def test_a_system_that_refuses_is_not_asked_again(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "POPULATE_WRITE", 12345)
    ahead = Prefault(layers, NUM_PAGES)
    ahead.use(0, 1)
    wait(ahead)
    first = ahead._thread
    ahead.use(30, 1)
    assert ahead._thread is first


def test_the_thread_ends_with_its_owner(layers: list[Tensor]) -> None:
    ahead = Prefault(layers, NUM_PAGES)
    ahead._is_stepping = True
    ahead.use(3, 1)
    thread = ahead._thread
    assert thread is not None
    del ahead
    gc.collect()
    thread.join(30.0)
    assert not thread.is_alive()


ENDS_IN_MID_STEP = """
import atexit, threading, torch
from scheduler_proc.computing.cpu.prefault import Prefault
ahead = [Prefault([torch.zeros(64, 1 << 10)], 64) for _ in range(3)]
for one in ahead:
    one._is_stepping = True
    one.use(0, 1)
print(len(threading.enumerate()))
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
"""


def test_no_thread_is_left_when_the_interpreter_ends() -> None:
    """A thread that is ended inside torch's code takes the process with it: `terminate called without …`."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS_IN_MID_STEP], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["4", "['MainThread']"]
