"""Pages in tiers: what is torn, damaged, full, locked, slow or hung costs pages, and never gives a wrong one."""

import errno
import itertools
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.arguments.paged_kv import SCALE_DTYPE
from messages.errors import BootError
from scheduler_proc.computing.backends.cpu.device import CpuDevice
from scheduler_proc.computing.device import Device
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors, allocate_cache
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription, NormDescription
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.tiers import tiered_pages
from scheduler_proc.computing.tiers.disk_tier import DiskTier
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.computing.tiers.slot_file import SECTOR_BYTES, SlotFile
from scheduler_proc.computing.tiers.tier import Tier
from scheduler_proc.computing.tiers.tiered_pages import TieredPages
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice

PATIENCE_S = 60.0
NUM_PAGES, PAGE_SIZE = 12, 4
PAGE_BYTES = 96
IDENTITY = b"i" * 32


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def page_of(number: int, num_bytes: int = PAGE_BYTES) -> bytes:
    return random.Random(number).randbytes(num_bytes)


def read_page(file: SlotFile, slot: int, number: int) -> bytes:
    page = bytearray(PAGE_BYTES)
    if not file.read(slot, [digest(number)], [memoryview(page)]):
        raise OSError("not that page")
    return bytes(page)


@pytest.fixture
def slot_file(tmp_path: Path) -> Iterator[SlotFile]:
    file = SlotFile(os.open(tmp_path / "slots", os.O_RDWR | os.O_CREAT), PAGE_BYTES)
    yield file
    file.close()


def test_a_write_that_is_cut_off_at_any_byte_is_noticed(slot_file: SlotFile, tmp_path: Path):
    path = tmp_path / "slots"
    slot_file.write(0, [digest(1)], [memoryview(page_of(1))])
    slot_file.write(1, [digest(2)], [memoryview(page_of(2))])
    old, size = path.read_bytes(), slot_file.slot_bytes
    slot_file.write(0, [digest(3)], [memoryview(page_of(3))])
    new = path.read_bytes()
    assert read_page(slot_file, 0, 3) == page_of(3)
    for cut in range(size):
        path.write_bytes(new[:cut] + old[cut:])
        for number in (1, 3) if 0 < cut < size - 1 else (3,):
            with pytest.raises(OSError, match="not that page"):
                read_page(slot_file, 0, number)
        path.write_bytes(new[:cut])
        with pytest.raises(OSError, match="not that page"):
            read_page(slot_file, 0, 3)
    path.write_bytes(new)
    assert read_page(slot_file, 1, 2) == page_of(2)


def test_any_other_byte_is_noticed(slot_file: SlotFile, tmp_path: Path):
    slot_file.write(0, [digest(1)], [memoryview(page_of(1))])
    whole = (tmp_path / "slots").read_bytes()
    for place in range(20):  # the header has no byte that means nothing
        damaged = bytearray(whole)
        damaged[place * len(whole) // 20] ^= 1 << place % 8
        (tmp_path / "slots").write_bytes(damaged)
        with pytest.raises(OSError, match="not that page"):
            read_page(slot_file, 0, 1)


def test_pages_of_whole_sectors_are_written_and_read_directly_while_memory_allows_it(tmp_path: Path):
    page_bytes = 3 * SECTOR_BYTES
    try:
        file = SlotFile(os.open(tmp_path / "slots", os.O_RDWR | os.O_CREAT | os.O_DIRECT), page_bytes)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    texts = [page_of(number, page_bytes) for number in range(3)]
    with mmap.mmap(-1, 3 * page_bytes) as memory, memoryview(memory) as view:
        pages = [view[number * page_bytes : (number + 1) * page_bytes] for number in range(3)]
        memory[:] = b"".join(texts)
        file.write(1, [digest(number) for number in range(3)], pages)
        memory[:] = bytes(len(memory))
        assert file.read(1, [digest(number) for number in range(3)], pages) == 3
        assert memory[:] == b"".join(texts)
        assert file.read(1, [digest(0), digest(9), digest(2)], pages) == 1, "up to the first that is another page"
        assert file.is_direct
        assert (tmp_path / "slots").stat().st_size == 4 * file.slot_bytes
        for page in pages:
            page.release()
    unaligned = memoryview(bytearray(page_bytes + 1))[1:]
    assert file.read(2, [digest(1)], [unaligned]) == 1
    assert bytes(unaligned) == texts[1]
    assert not file.is_direct
    file.close()


def fill(tier: Tier, numbers: Sequence[int]) -> None:
    for number in numbers:
        placed = tier.place(digest(number))
        assert placed is not None
        tier.write(placed[0], [digest(number)], [memoryview(page_of(number))])
        tier.record_written(placed[0], digest(number), None)


def numbers_in(tier: Tier) -> list[int]:
    found = [number for number in range(100) if tier.find(digest(number)) is not None]
    for number in found:
        slot = tier.find(digest(number))
        assert slot is not None
        assert read_page(tier.file, slot, number) == page_of(number)
    return found


SLOT_BYTES = PAGE_BYTES + 24 + 24
"""With its header and its record in the index."""


def disk(folder: Path, num_slots: int = 5, identity: bytes = IDENTITY) -> DiskTier:
    return DiskTier(folder, num_slots * SLOT_BYTES + SLOT_BYTES // 2, identity, PAGE_BYTES)


def test_pages_outlive_the_process_and_the_least_recently_used_leave_first(tmp_path: Path):
    tier = disk(tmp_path / "engine-1")
    fill(tier, range(7))
    assert numbers_in(tier) == [2, 3, 4, 5, 6]
    assert tier.has(digest(2))
    tier.close()
    size = sum(file.stat().st_size for file in (tmp_path / "engine-1").iterdir())
    assert size <= 6 * SLOT_BYTES
    again = disk(tmp_path / "engine-1")
    assert numbers_in(again) == [2, 3, 4, 5, 6]
    fill(again, [7, 8])
    assert numbers_in(again) == [2, 5, 6, 7, 8]
    again.close()
    smaller = disk(tmp_path / "engine-1", num_slots=2)
    assert len(numbers_in(smaller)) == 2
    assert (tmp_path / "engine-1" / "pages").stat().st_size <= 2 * SLOT_BYTES
    smaller.close()


def test_a_process_that_is_killed_leaves_what_was_written(tmp_path: Path):
    tier = disk(tmp_path)
    fill(tier, range(7))
    placed = tier.place(digest(9))
    assert placed is not None
    child = os.fork()
    if not child:
        tier.write(placed[0], [digest(9)], [memoryview(page_of(9))])
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    os.close(tier._index)  # as the end of the process does; it writes no order of use
    tier.file.close()
    again = disk(tmp_path)
    assert numbers_in(again) == [3, 4, 5, 6, 9]
    fill(again, [10])
    assert numbers_in(again) == [4, 5, 6, 9, 10]
    again.close()


@pytest.mark.parametrize("name", ["index", "pages"])
def test_damage_anywhere_costs_pages_alone(tmp_path: Path, name: str):
    chance = random.Random(4)
    for _ in range(30):
        tier = disk(tmp_path)
        fill(tier, range(5))
        tier.close()
        data = bytearray((tmp_path / name).read_bytes())
        place = chance.randrange(len(data))
        data[place : place + chance.randrange(1, 60)] = chance.randbytes(chance.randrange(60))
        (tmp_path / name).write_bytes(data)
        damaged = disk(tmp_path)
        for number in range(5):
            slot = damaged.find(digest(number))
            if slot is not None:
                try:
                    assert read_page(damaged.file, slot, number) == page_of(number)
                except OSError:
                    damaged.drop(digest(number))
        fill(damaged, range(20, 25))
        assert set(numbers_in(damaged)) >= set(range(20, 25))
        damaged.close()


def test_files_of_another_identity_are_emptied_which_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tier = disk(tmp_path)
    fill(tier, range(3))
    tier.close()
    assert not caplog.messages
    other = disk(tmp_path, identity=b"o" * 32)
    assert numbers_in(other) == []
    assert "of another model, format or version" in caplog.text
    other.close()


def test_a_second_server_and_a_directory_that_cannot_be_had_are_notified(tmp_path: Path):
    tier = disk(tmp_path)
    with pytest.raises(BootError, match=r"another server has .*; give each a directory of its own"):
        disk(tmp_path)
    tier.close()
    disk(tmp_path).close()
    (tmp_path / "file").touch()
    for folder, reason in ((tmp_path / "file" / "engine-1", "Not a directory"), (Path("/proc/engine-1"), "No such")):
        with pytest.raises(BootError, match=reason):
            disk(folder)


Cache = tuple[KVTensors, torch.Tensor]


def make_cache(dtype: torch.dtype) -> KVTensors:
    """Returns a cache of three layers, of which the second has other heads."""
    norm = NormDescription(kind="rms", size=8, eps=1e-5)
    layers = [
        LayerDescription(
            mixers=(AttentionDescription(num_heads=2, num_kv_heads=num_heads, head_dim=head_dim, scale=1.0),)
        )
        for num_heads, head_dim in ((2, 5), (1, 8), (2, 5))
    ]
    model = ModelDescription(vocab_size=1, hidden_size=8, layers=tuple(layers), final_norm=norm)
    codes = {"kv_codes": dtype} if dtype == torch.int8 else {"kv_numbers": dtype}
    cache = allocate_cache(model, NUM_PAGES, PAGE_SIZE, Placement(torch.device("cpu"), torch.float32, **codes))
    for tensor in cache.tensors:
        tensor.copy_(torch.rand(tensor.shape) if tensor.dtype == SCALE_DTYPE else torch.randint(-99, 99, tensor.shape))
    return cache


def contents(cache: KVTensors, page: int) -> list[torch.Tensor]:
    return [part[:, page * PAGE_SIZE : (page + 1) * PAGE_SIZE].clone() for part in cache.tensors]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(part, other_part) for part, other_part in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("make_device", [CpuDevice, LateDevice])
def test_copies_are_in_order_with_steps(dtype: torch.dtype, make_device: Callable[[], Device]):
    cache, device = make_cache(dtype), make_device()
    copies = PageCopies(cache.tensors, cache.num_pages, device)
    before = [contents(cache, page) for page in range(NUM_PAGES)]
    fetched = copies.copy_out([3, 7])

    def step() -> list[torch.Tensor]:
        for part in cache.tensors:
            part[:, 3 * PAGE_SIZE : 5 * PAGE_SIZE] = 1
        return [torch.zeros(1)]

    device.submit(step)
    host = copies.allocate_host(2)
    (rows,) = fetched.wait()
    assert isinstance(rows, torch.Tensor)
    host.copy_(rows)
    copies.copy_in([4, 3], host)
    device.submit(lambda: [torch.zeros(1)]).wait()
    after = [contents(cache, page) for page in range(NUM_PAGES)]
    assert same(after[4], before[3])
    assert same(after[3], before[7])
    assert all(same(after[page], before[page]) for page in range(NUM_PAGES) if page not in (3, 4))


def test_memory_of_copies_begins_at_a_sector_and_is_used_again_once_it_is_released():
    cache = make_cache(torch.float32)
    copies = PageCopies(cache.tensors, cache.num_pages, CpuDevice())

    def copy_out(*pages: int) -> torch.Tensor:
        (rows,) = copies.copy_out(pages).wait()
        assert isinstance(rows, torch.Tensor)
        assert rows.data_ptr() % SECTOR_BYTES == 0
        return rows

    first, second = copy_out(0, 1, 2), copy_out(3)
    kept = second.clone()
    assert copies.allocate_host(2).data_ptr() % SECTOR_BYTES == 0
    copies.release(first)
    third = copy_out(4, 5)
    assert third.data_ptr() == first.data_ptr()
    copies.release(third)
    fourth = copy_out(2, 1, 0)
    assert fourth.data_ptr() == first.data_ptr(), "nothing of the memory is lost"
    assert torch.equal(fourth[1:], PageCopies(cache.tensors, cache.num_pages, CpuDevice()).copy_out([1, 0]).wait()[0])
    assert torch.equal(second, kept)
    assert copy_out(3).data_ptr() not in (first.data_ptr(), second.data_ptr()), "each is used by one at a time"


class Slow(Tier):
    """Writes when it may."""

    def __init__(self, name: str, file: SlotFile, num_slots: int):
        super().__init__(name, file, num_slots)
        self.may_write = threading.Event()

    def write(self, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        assert self.may_write.wait(PATIENCE_S)
        super().write(slot, digests, pages)


class Pages:
    """A cache, and a store of its pages with tiers of these sizes. Page n of the cache has name n at first."""

    def __init__(self, *num_slots: int):
        self.cache = make_cache(torch.float32)
        self.before = [contents(self.cache, page) for page in range(NUM_PAGES)]
        copies = PageCopies(self.cache.tensors, self.cache.num_pages, CpuDevice())
        names = ("host", "disk")[-len(num_slots) :]
        self.tiers = [
            Slow(name, SlotFile(os.memfd_create(name), copies.page_bytes), num)
            for name, num in zip(names, num_slots, strict=True)
        ]
        self.store = TieredPages(copies, self.tiers)
        self.woken = threading.Event()
        self.store.wake = self.woken.set
        self.let_write()

    def let_write(self, may_write: bool = True) -> None:
        for tier in self.tiers:
            (tier.may_write.set if may_write else tier.may_write.clear)()

    def put(self, *numbers: int) -> None:
        self.store.put(numbers, [digest(number) for number in numbers])

    def load(self, pages: Sequence[int], numbers: Sequence[int], uid: int = 1) -> None:
        self.store.load(uid, pages, [digest(number) for number in numbers])

    def wait(self, uid: int = 1) -> int:
        """Waits for the end of a load, and returns how many pages have come."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self.woken.clear()
            for loaded, num_pages, has_ended in self.store.pop_loaded():
                if loaded == uid and has_ended:
                    return num_pages
            assert self.woken.wait(deadline_s - time.monotonic())

    def has(self, page: int, number: int) -> bool:
        """True if a page of the cache holds the original content of page `number`."""
        return same(contents(self.cache, page), self.before[number])

    def places(self, *numbers: int) -> list[str | None]:
        return [self.store.find(digest(number)) for number in numbers]


@pytest.fixture
def make_pages() -> Iterator[Callable[..., Pages]]:
    made: list[Pages] = []

    def make(*num_slots: int) -> Pages:
        made.append(Pages(*num_slots))
        return made[-1]

    yield make
    for pages in made:
        pages.let_write()
        pages.store.close()


MakePages = Callable[..., Pages]


def test_pages_come_back_as_they_were(make_pages: MakePages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiered_pages, "READ_BYTES", 1)
    pages = make_pages(20)
    pages.put(0, 1, 2, 3, 4, 5)
    assert pages.store.settle(PATIENCE_S)
    pages.load([6, 7, 8, 9, 10], [0, 1, 2, 3, 4])
    assert pages.wait() == 5
    assert all(pages.has(6 + number, number) for number in range(5))
    pages.put(6)
    assert pages.store.settle(PATIENCE_S)
    gauges = pages.store.gauges()
    assert (gauges["disk_pages"], gauges["disk_hit_pages"]) == (7, 5)
    assert gauges["disk_read_bytes_per_s"] > 0
    pages.store.clear()
    assert pages.places(0, 5) == [None, None]


def test_what_leaves_the_host_goes_to_disk_and_comes_back_from_either(make_pages: MakePages):
    pages = make_pages(2, 3)
    pages.put(0, 1)
    assert pages.store.settle(PATIENCE_S)
    pages.put(2, 3)
    assert pages.store.settle(PATIENCE_S)
    pages.put(4)
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1, 2, 3, 4) == ["disk", "disk", "disk", "host", "host"]
    pages.load([8, 9, 10], [1, 4, 2])
    assert pages.wait() == 3
    assert (pages.has(8, 1), pages.has(9, 4), pages.has(10, 2)) == (True, True, True)
    gauges = pages.store.gauges()
    assert (gauges["host_hit_pages"], gauges["disk_hit_pages"], gauges["disk_pages"]) == (1, 2, 3)


def test_pages_are_written_at_once_as_far_as_their_slots_follow_each_other(
    make_pages: MakePages, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tiered_pages, "MAX_WRITTEN_AT_ONCE", 3)
    sizes, write = list[int](), os.pwritev

    def pwritev(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        sizes.append(len(buffers) // 2)
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    pages = make_pages(6)
    pages.put(0, 1, 2, 3, 4)
    assert pages.store.settle(PATIENCE_S)
    pages.store.touch([digest(1), digest(3)])
    pages.put(5, 6, 7, 8)
    assert pages.store.settle(PATIENCE_S)
    assert sizes == [3, 2, 1, 1, 1, 1], "slots 5, 0, 2 and 4 in the end"
    pages.load([9, 10, 11, 0, 2, 4], [5, 6, 7, 8, 1, 3])
    assert pages.wait() == 6
    assert all(pages.has(*pair) for pair in ((9, 5), (10, 6), (11, 7), (0, 8), (2, 1), (4, 3)))


def test_pages_are_read_at_once_as_far_as_their_slots_follow_each_other(
    make_pages: MakePages, monkeypatch: pytest.MonkeyPatch
):
    pages = make_pages(8)
    pages.put(0, 1, 2, 3, 4, 5)
    assert pages.store.settle(PATIENCE_S)
    sizes, read = list[int](), SlotFile.read

    def count(file: SlotFile, slot: int, digests: Sequence[bytes], memory: Sequence[memoryview]) -> int:
        sizes.append(len(digests))
        return read(file, slot, digests, memory)

    monkeypatch.setattr(SlotFile, "read", count)
    pages.load([6, 7, 8, 9, 10], [1, 2, 3, 5, 4])
    assert pages.wait() == 5
    assert sizes == [3, 1, 1]
    assert all(pages.has(*pair) for pair in ((6, 1), (7, 2), (8, 3), (9, 5), (10, 4)))


def test_a_write_that_ends_early_keeps_none_of_its_pages(make_pages: MakePages, monkeypatch: pytest.MonkeyPatch):
    pages, write = make_pages(20), os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, offset: write(file, parts[:3], offset))
    pages.put(0, 1, 2)
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1, 2) == [None] * 3
    assert pages.store.gauges()["disk_errors"] == 3


def test_what_a_page_costs_is_the_time_of_all_by_their_number(make_pages: MakePages, monkeypatch: pytest.MonkeyPatch):
    """Each put takes a second of CPU time in each thread: of one page and of nine, that is 0.4 s a page."""
    seconds = itertools.count()
    monkeypatch.setattr(tiered_pages.time, "thread_time", lambda: float(next(seconds)))
    pages = make_pages(20)
    for numbers in ((0,), range(1, 10)):
        pages.put(*numbers)
        assert pages.store.settle(PATIENCE_S)
    assert pages.store.page_put_s == pytest.approx(0.4, rel=0.05)


def test_what_reading_a_page_takes_is_the_time_of_all_by_their_number(slot_file: SlotFile):
    tier = Tier("disk", slot_file, 4)
    tier.record_read(1, 1.0)
    tier.record_read(9, 1.0)
    assert tier.page_read_s == pytest.approx(0.2, rel=0.02)


def test_a_full_queue_drops_pages_and_waits_for_nothing(make_pages: MakePages, monkeypatch: pytest.MonkeyPatch):
    copies = PageCopies(make_cache(torch.float32).tensors, NUM_PAGES, CpuDevice())
    monkeypatch.setattr(tiered_pages, "MAX_QUEUED_BYTES", 3 * copies.page_bytes)
    pages = make_pages(20)
    pages.let_write(may_write=False)
    pages.put(0, 1)
    pages.put(2, 3, 4)
    assert pages.store.gauges()["tier_dropped_pages"] == 2
    assert pages.places(0, 1, 2) == [None] * 3, "they are not written yet"
    assert not pages.store.settle(0.0)
    pages.let_write()
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1, 2, 3, 4) == ["disk"] * 3 + [None] * 2


def test_a_page_that_cannot_be_read_ends_its_load_and_is_forgotten(
    make_pages: MakePages, caplog: pytest.LogCaptureFixture
):
    pages = make_pages(20)
    pages.put(0, 1, 2)
    assert pages.store.settle(PATIENCE_S)
    slot = pages.tiers[0].find(digest(1))
    assert slot is not None
    pages.tiers[0].file.write(slot, [digest(9)], [memoryview(bytes(pages.tiers[0].file.slot_bytes - 24))])
    pages.load([6, 7, 8], [0, 1, 2])
    assert pages.wait() == 1
    assert pages.has(6, 0)
    assert pages.has(7, 7)
    assert pages.places(0, 1, 2) == ["disk", None, "disk"]
    assert "its checksum is wrong" in caplog.text


def test_a_page_that_left_meanwhile_ends_its_load(make_pages: MakePages):
    pages = make_pages(20)
    pages.put(0)
    assert pages.store.settle(PATIENCE_S)
    pages.load([6, 7], [0, 1])
    assert pages.wait() == 1
    pages.load([6, 7], [1, 0])
    assert pages.wait() == 0


def test_a_disk_that_is_full_keeps_its_pages(
    make_pages: MakePages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    pages = make_pages(20)
    pages.put(0, 1, 2, 3)
    assert pages.store.settle(PATIENCE_S)
    slot_bytes, write = pages.tiers[0].file.slot_bytes, os.pwritev

    def pwritev(descriptor: int, buffers: Any, offset: int) -> int:
        if offset >= 4 * slot_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    pages.put(4, 5)
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1, 2, 3, 4, 5) == ["disk"] * 4 + [None] * 2
    assert "No space left on device" in caplog.text
    pages.put(6)
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1, 2, 3, 6) == [None, *["disk"] * 4], "the least recently used page leaves for it"


def test_a_read_that_hangs_is_notified_by_the_estimate_and_blocks_no_one(
    make_pages: MakePages, monkeypatch: pytest.MonkeyPatch
):
    pages = make_pages(20)
    pages.put(0, 1)
    assert pages.store.settle(PATIENCE_S)
    pages.load([6], [0])
    pages.wait()
    may_read, is_reading, read = threading.Event(), threading.Event(), SlotFile.read

    def hang(file: SlotFile, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> int:
        is_reading.set()
        assert may_read.wait(PATIENCE_S)
        return read(file, slot, digests, pages)

    monkeypatch.setattr(SlotFile, "read", hang)
    names = [digest(0)]
    quiet_s = pages.store.estimate_s(names)
    pages.load([7], [1])
    assert is_reading.wait(PATIENCE_S)
    first_s = pages.store.estimate_s(names)
    assert first_s > quiet_s
    assert pages.store.estimate_s(names) > first_s
    assert pages.store.pop_loaded() == []
    pages.store.cancel(1)
    pages.load([8], [1], uid=2)
    may_read.set()
    assert pages.wait(2) == 1
    assert pages.has(8, 1)
    assert pages.has(7, 7), "nobody writes to the pages of a load that is cancelled"


def test_what_is_cleared_while_it_is_written_is_gone(make_pages: MakePages):
    pages = make_pages(2)
    pages.let_write(may_write=False)
    pages.put(0, 1)
    pages.store.clear()
    pages.put(2)
    pages.let_write()
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1, 2) == [None] * 3
    pages.put(0, 1)
    assert pages.store.settle(PATIENCE_S)
    assert pages.places(0, 1) == ["disk"] * 2


def test_it_ends_while_no_one_takes_what_is_read(make_pages: MakePages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiered_pages, "READ_BYTES", 1)
    pages = make_pages(20)
    pages.put(*range(6))
    assert pages.store.settle(PATIENCE_S)
    pages.load([6, 7, 8, 9, 10, 11], list(range(6)))
    assert pages.woken.wait(PATIENCE_S)


def test_the_files_on_disk_are_no_links(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "pages").symlink_to(tmp_path / "letter")
    with pytest.raises(BootError, match=str(tmp_path)):
        DiskTier(tmp_path, 1 << 20, IDENTITY, PAGE_BYTES)
    assert (tmp_path / "letter").read_text() == "dear"
