"""Memory is there before it is written, and what it holds stays as it is."""

import ctypes
import gc
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu.huge_pages import empty_huge
from scheduler_proc.computing.backends.cpu import populate
from scheduler_proc.computing.backends.cpu.populate import PagePopulation

ROOT = Path(__file__).resolve().parents[5]
NUM_PAGES, PAGE_ELEMENTS = 32, 1 << 18
"""A page of a layer takes 1 MB."""

Report = Callable[[str, float | None], None]


def find_threads() -> list[threading.Thread]:
    """Returns those that populate; one that has little to do may have ended."""
    return [thread for thread in threading.enumerate() if thread.name == "populate"]


def num_resident(tensor: Tensor) -> int:
    """Returns how many of the tensor's pages have all their memory."""
    vector = (ctypes.c_ubyte * (tensor.nbytes // mmap.PAGESIZE))()
    first = tensor.data_ptr()
    assert first % mmap.PAGESIZE == 0
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(tensor.nbytes), vector) == 0
    pages = torch.frombuffer(vector, dtype=torch.uint8).view(NUM_PAGES, -1) & 1
    return int(pages.all(dim=1).sum())


def ignore(text: str, fraction: float | None) -> None: ...


@pytest.fixture
def layers() -> list[Tensor]:
    return [empty_huge((NUM_PAGES, PAGE_ELEMENTS), torch.float32) for _ in range(2)]


def test_all_pages_have_memory_before_the_start_and_it_is_notified(layers: list[Tensor]) -> None:
    layers[0][3] = 7.0
    fractions: list[float | None] = []
    population = PagePopulation(layers, NUM_PAGES)
    population.run(lambda text, fraction: fractions.append(fraction))
    if population.num_ready < NUM_PAGES:
        pytest.skip("this system gives no memory ahead")
    assert [num_resident(layer) for layer in layers] == [NUM_PAGES, NUM_PAGES]
    assert bool((layers[0][3] == 7.0).all())
    assert (len(fractions), fractions[-1]) == (NUM_PAGES, 1.0)


def test_tensors_of_fewer_pages_have_their_memory_first(layers: list[Tensor]) -> None:
    short = empty_huge((NUM_PAGES, PAGE_ELEMENTS), torch.float32)[: NUM_PAGES // 4]
    population = PagePopulation([short, *layers], NUM_PAGES)
    for _ in range(3 * NUM_PAGES // 4):
        if not population.ask():
            pytest.skip("this system gives no memory ahead")
    assert num_resident(short) == NUM_PAGES, "all of it"
    assert NUM_PAGES // 4 <= num_resident(layers[0]) < NUM_PAGES
    population.run(ignore)
    assert [num_resident(layer) for layer in layers] == [NUM_PAGES, NUM_PAGES]


def start_and_wait(population: PagePopulation) -> None:
    population.start()
    join_threads()


def join_threads() -> None:
    for thread in find_threads():
        thread.join(60.0)
        assert not thread.is_alive(), "it rests when it is far enough ahead"


def test_a_thread_stays_ahead_of_the_pages_in_use(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "LEAD_BYTES", 8 * 2 << 20)
    population = PagePopulation(layers, NUM_PAGES)
    start_and_wait(population)
    if population.needs_more or not population.num_ready:
        pytest.skip("this system gives no memory ahead")
    assert [num_resident(layer) for layer in layers] == [8, 8], "an unused cache has its first pages only"
    population.use(1, 2)
    join_threads()
    assert [num_resident(layer) for layer in layers] == [10, 10]
    population.use(1, 1)
    population.use(0, 1)
    assert not find_threads(), "nothing to do"
    population.use(NUM_PAGES - 4, 1)
    join_threads()
    assert [num_resident(layer) for layer in layers] == [NUM_PAGES, NUM_PAGES]
    assert population.num_ready == NUM_PAGES


def test_it_is_a_slice_ahead_even_if_that_is_more_than_the_lead(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(populate, "LEAD_BYTES", 1)
    monkeypatch.setattr(populate, "LEAD_SHARE", 0)
    population = PagePopulation(layers, NUM_PAGES)
    start_and_wait(population)
    assert population.needs_more or num_resident(layers[0]) == 2


def test_the_lead_is_512_mb_or_an_eighth_of_a_larger_cache(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch):
    total = sum(layer.nbytes for layer in layers)
    assert (populate.LEAD_BYTES, populate.LEAD_SHARE) == (512 << 20, 1 / 8)
    for least, num_pages in ((total, NUM_PAGES), (total // 2, NUM_PAGES // 2), (1, NUM_PAGES // 8)):
        monkeypatch.setattr(populate, "LEAD_BYTES", least)
        population = PagePopulation(layers, NUM_PAGES)
        start_and_wait(population)
        assert population.num_ready in (0, num_pages), "0: this system gives no memory ahead"


def test_the_lead_doubles_once_each_time_it_was_caught_up(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(populate, "LEAD_BYTES", 4 * 2 << 20)
    population = PagePopulation(layers, NUM_PAGES)
    start_and_wait(population)
    if population.needs_more or not population.num_ready:
        pytest.skip("this system gives no memory ahead")
    expected = ((2, 4 + 2), (4, 4 + 4), (7, 6 + 4), (10, 10 + 8), (17, 16 + 16))
    for num_used, num_ready in expected:  # one page of ten is left at (10, …), one of 18 at (17, …)
        population.use(num_used - 1, 1)
        join_threads()
        assert (num_used, population.num_ready) == (num_used, num_ready)


def test_a_lead_that_has_not_come_yet_does_not_double(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "LEAD_BYTES", 4 * 2 << 20)
    monkeypatch.setattr(populate, "_populate", lambda owner: None)  # steps from the first moment on
    population = PagePopulation(layers, NUM_PAGES)
    population.start()
    for page in range(8):
        population.use(page, 1)
    assert population._num_requested == 8 + 4


def test_without_a_start_no_thread_gets_memory(layers: list[Tensor]) -> None:
    population = PagePopulation(layers, NUM_PAGES)
    population.use(5, 6)
    assert not find_threads()
    assert [num_resident(layer) for layer in layers] == [0, 0]


def test_the_first_step_leaves_the_first_pages_of_a_file_to_the_thread(
    layers: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(populate, "make_huge", lambda first, size: made.append((first, size)))
    monkeypatch.setattr(populate, "_populate", lambda owner: None)  # it has not come to it yet
    page_bytes = layers[0].nbytes // NUM_PAGES
    slow, never = (PagePopulation(layers, NUM_PAGES, is_file=True) for _ in range(2))
    slow.start()
    slow.use(1, 2)
    assert (made, slow.num_ready) == ([], 0)
    slow.use(2, 1)
    assert (made, slow.num_ready) == ([(layer.data_ptr(), 3 * page_bytes) for layer in layers], 3)
    made.clear()
    never.use(1, 2)
    assert made == [(layer.data_ptr(), 2 * page_bytes) for layer in layers]


def test_while_steps_run_it_gets_twice_what_they_use(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """With less a server under load would never have its memory; without a limit streams would stand still."""
    monkeypatch.setattr(populate, "LOOK_S", 60.0)
    population = PagePopulation(layers, NUM_PAGES)
    with population:
        assert not population.is_at_rest
        population.start()
        for num_used, num_ready in ((1, 2), (2, 4), (4, 8), (5, 10)):
            population.use(num_used - 1, 1)
            wait_until(lambda: population._num_due == 0)
            assert (num_used, population.num_ready) == (num_used, num_ready)
        (thread,) = find_threads()
        population._num_requested = 0
        population.is_needed.set()
        thread.join(30.0)


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_steps_use_most_of_the_lead_before_the_thread_disturbs_them(
    layers: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(populate, "LEAD_BYTES", 8 * 2 << 20)
    population = PagePopulation(layers, NUM_PAGES)
    start_and_wait(population)
    for num_used, is_short in ((1, False), (6, False), (7, True), (8, True)):
        population._num_used = num_used
        assert population.is_short is is_short


def test_right_after_a_step_it_waits(layers: list[Tensor]) -> None:
    population = PagePopulation(layers, NUM_PAGES)
    assert population.is_at_rest
    with population:
        pass
    population._last_step_s = time.monotonic() + 60.0
    assert not population.is_at_rest


def test_other_programs_keep_some_memory(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without memory kills processes; pages that are used may still get memory."""
    left = iter([1000 << 20, 900 << 20, 124 << 20])
    monkeypatch.setattr(populate, "available_memory_bytes", lambda *_: next(left))
    population = PagePopulation(layers, NUM_PAGES)
    population.run(ignore)
    assert next(left, None) is None
    assert population.num_ready < NUM_PAGES
    assert not population.needs_more, "it does not ask again"
    assert max(map(num_resident, layers)) <= 2 * 4  # a slice of two pages, and those that share a huge page with it


def test_memory_that_comes_back_is_requested_later(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1000 << 20]
    monkeypatch.setattr(populate, "available_memory_bytes", lambda *_: left[0])
    population = PagePopulation(layers, NUM_PAGES)
    left[0] = 124 << 20
    start_and_wait(population)
    assert (population.num_ready, population.needs_more) == (0, False)
    left[0] = 1000 << 20
    population.use(3, 1)
    assert not find_threads(), "not at once"
    monkeypatch.setattr(population, "_retry_s", 0.0)
    population.use(3, 1)
    join_threads()
    assert population.num_ready > 3


def test_a_system_that_refuses_is_not_asked_again(layers: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "POPULATE_WRITE", 12345)
    population = PagePopulation(layers, NUM_PAGES)
    assert not population.ask()
    population.start()
    for thread in threading.enumerate():
        if thread.name == "populate":
            thread.join(60.0)
            assert not thread.is_alive()


def test_the_thread_ends_with_its_owner(layers: list[Tensor]) -> None:
    population = PagePopulation(layers, NUM_PAGES)
    population._is_stepping, population._slice_pages = True, 1
    population.start()
    thread = find_threads()[-1]
    del population
    gc.collect()
    thread.join(30.0)
    assert not thread.is_alive()


ENDS_IN_MID_STEP = """
import atexit, threading, torch
from scheduler_proc.computing.backends.cpu.populate import PagePopulation
populations = [PagePopulation([torch.zeros(1 << 12, 1 << 10)], 1 << 12) for _ in range(3)]
for one in populations:
    one._is_stepping = True
    one.start()
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
