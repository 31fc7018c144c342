"""A KV cache in a file in memory: the next scheduler computes on where one has left off, and only where it may."""

import fcntl
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from messages.columns import unpack_int32
from messages.config.server import Config
from messages.errors import BootError
from messages.ring.replies import DetokenizeMsg
from scheduler_proc.computing.backends.cpu import loading
from scheduler_proc.computing.backends.cpu.populate import PagePopulation
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.deciding.pages.page_journal import PageJournal
from scheduler_proc.deciding_half import make_scheduler
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.clients import user_msg
from tests.tiny_llama import write_tiny_llama

PROMPT, NUM_TOKENS = [5 + index % 200 for index in range(150)], 90
NUM_PAGES, PAGE_SIZE = 64, 8


@pytest.fixture
def path() -> Iterator[Path]:
    descriptor = os.memfd_create("kv-cache")
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(path)
    return path


def wait_until_free(path: Path) -> None:
    """Waits until the scheduler before has no tensor of it left: the thread that populates may still hold some."""
    deadline = time.monotonic() + 60.0
    with path.open("rb") as file:
        while True:
            gc.collect()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                assert time.monotonic() < deadline, "its memory is still mapped"
                time.sleep(0.01)


def configure(model_dir: Path, **flags: object) -> Config:
    return make_config(model_dir, **{"num_pages": NUM_PAGES, "block_size": PAGE_SIZE, "max_model_len": 256, **flags})


class Served:
    """The output of one request, and the gauges of its scheduler, which has ended."""

    def __init__(self, config: Config, path: Path | None, known: list[int], num_tokens: int):
        runner = load_runner(config, lambda text, fraction: None, kv_file=path)
        scheduler = make_scheduler(config, runner)
        scheduler.receive(user_msg(1, PROMPT, NUM_TOKENS, len(known), known, ignore_eos=True))
        self.token_ids: list[int] = []
        while len(self.token_ids) < num_tokens:
            batch = scheduler.schedule()
            assert batch is not None
            scheduler.commit(runner.launch(batch).result())
            for reply in scheduler.pop_replies():
                if isinstance(reply, DetokenizeMsg):
                    self.token_ids += unpack_int32(reply.token_ids)
        scheduler.check()
        self.gauges = scheduler.gauges()
        journal = scheduler.cache.find_observer(PageJournal)
        if journal is not None and num_tokens == 41:
            journal.damage(1)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_the_next_scheduler_computes_one_step_and_the_same_tokens(model_dir: Path, path: Path, kv_cache_dtype: str):
    config = configure(model_dir, kv_cache_dtype=kv_cache_dtype)
    whole = Served(config, None, [], NUM_TOKENS).token_ids
    first = Served(config, path, [], 40)
    wait_until_free(path)
    second = Served(config, path, first.token_ids, NUM_TOKENS - 40)
    assert first.token_ids + second.token_ids == whole
    assert second.gauges["pages_recovered"] == (150 + 39) // PAGE_SIZE
    assert second.gauges["recomputed_tokens"] == 190 - 184
    assert second.gauges["pages_dropped"] == 0


@pytest.mark.parametrize("variant", ["gemma3", "mistral-window"])
def test_the_next_scheduler_takes_over_window_pages(tmp_path: Path, path: Path, variant: str):
    build_checkpoint(tmp_path, variant, max_position_embeddings=256)
    config = configure(tmp_path, max_num_batched_tokens=32)
    whole = Served(config, None, [], NUM_TOKENS).token_ids
    first = Served(config, path, [], 40)
    wait_until_free(path)
    second = Served(config, path, first.token_ids, NUM_TOKENS - 40)
    assert first.token_ids + second.token_ids == whole
    assert second.gauges["recomputed_tokens"] == 190 - 184
    assert second.gauges["window_pages_all"] < NUM_PAGES


@pytest.mark.parametrize("variant", ["qwen3_5", "mamba2"])
def test_the_next_scheduler_continues_from_a_state(tmp_path: Path, path: Path, variant: str):
    build_checkpoint(tmp_path, variant, max_position_embeddings=256)
    config = configure(tmp_path, max_num_batched_tokens=32)
    whole = Served(config, None, [], NUM_TOKENS).token_ids
    first = Served(config, path, [], 40)
    wait_until_free(path)
    second = Served(config, path, first.token_ids, NUM_TOKENS - 40)
    assert first.token_ids + second.token_ids == whole
    assert second.gauges["recomputed_tokens"] == 190 - 184


def test_damaged_pages_are_computed_again(model_dir: Path, path: Path):
    config = configure(model_dir)
    whole = Served(config, None, [], NUM_TOKENS).token_ids
    first = Served(config, path, [], 41)
    wait_until_free(path)
    second = Served(config, path, first.token_ids, NUM_TOKENS - 41)
    assert first.token_ids + second.token_ids == whole
    assert second.gauges["pages_dropped"] > 0
    assert second.gauges["recomputed_tokens"] > PAGE_SIZE


def test_a_cache_of_other_flags_is_provided_back(model_dir: Path, path: Path):
    Served(configure(model_dir), path, [], 3)
    wait_until_free(path)
    other = Served(configure(model_dir, num_pages=NUM_PAGES + 1), path, [1, 2, 3], 3)
    assert other.gauges["pages_all"] == NUM_PAGES + 1
    assert (other.gauges["pages_recovered"], other.gauges["pages_dropped"]) == (0, 0)


def test_the_number_of_pages_stays_whatever_memory_is_free(
    model_dir: Path, path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = configure(model_dir, num_pages=None)
    first = Served(config, path, [], 3)
    wait_until_free(path)
    monkeypatch.setattr(loading, "available_memory_bytes", lambda *_: 200 << 20)
    second = Served(config, path, first.token_ids, 3)
    assert second.gauges["pages_all"] == first.gauges["pages_all"]
    assert second.gauges["pages_recovered"] > 0


def test_changed_weights_are_another_cache(tmp_path: Path, path: Path):
    write_tiny_llama(tmp_path)
    Served(configure(tmp_path), path, [], 3)
    wait_until_free(path)
    write_tiny_llama(tmp_path)
    assert Served(configure(tmp_path), path, [1, 2, 3], 3).gauges["pages_recovered"] == 0


def test_two_schedulers_cannot_have_it_at_once(path: Path):
    first = KVMemory(path, b"1" * 32)
    with pytest.raises(BootError, match="--no-keep-kv-cache"):
        KVMemory(path, b"1" * 32)
    del first
    wait_until_free(path)
    KVMemory(path, b"1" * 32)


def test_memory_is_taken_as_it_is_written_and_lies_as_huge_pages_need_it(path: Path):
    memory = KVMemory(path, b"1" * 32)
    memory.map(1000, 16, 64 << 20)
    tensors = [memory.take((4, 16_000, 4, 32), torch.float32) for _ in range(2)]
    assert path.stat().st_size > 64 << 20
    assert path.stat().st_blocks * 512 < 1 << 20
    tensors[1][3, 160:176] = 7.0
    checksum = memory.checksum(10)
    assert checksum != memory.checksum(11)
    memory.damage(10)
    assert memory.checksum(10) != checksum
    assert (tensors[0].data_ptr() - memory._chunk._bytes.data_ptr()) > 0
    mapped = (
        int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines() if "kv-cache" in line
    )
    assert all(address % (2 << 20) == 0 for address in mapped)


def test_a_successor_finds_states_as_they_were(path: Path):
    def find() -> tuple[KVMemory, Tensor, Tensor]:
        memory = KVMemory(path, b"1" * 32)
        memory.map(8, 16, 1 << 20, num_states=5)
        memory.take((2, 8 * 16, 4), torch.float32)
        tails = memory.take((3, 5, 3, 7), torch.bfloat16, "state")
        return memory, tails, memory.take((3, 5, 8), torch.float32, "state")

    memory, tails, matrices = find()
    assert len(memory.notes) == 8 * (80 + 4 * 16) + 5 * 24
    tails[2, 4], matrices[1, 4] = 1.5, 0.25
    pages, states = [memory.checksum(page) for page in range(8)], [memory.checksum_state(slot) for slot in range(5)]
    assert states[:4] == [0] * 4 != states[4:]
    assert pages == [0] * 8
    del memory, tails, matrices
    wait_until_free(path)
    memory, tails, matrices = find()
    assert [memory.checksum_state(slot) for slot in range(5)] == states
    tails[0, 3, 2, 6] = 1.0
    matrices[2, 4, 7] = 1.0
    changed = [memory.checksum_state(slot) for slot in range(5)]
    assert [ours == before for ours, before in zip(changed, states, strict=True)] == [True, True, True, False, False]
    assert [memory.checksum(page) for page in range(8)] == pages


def num_huge_kb(path: Path) -> int:
    """Returns how much of this file is mapped in huge pages; threads of other tests may still make some of theirs."""
    num_kb, is_own = 0, False
    for words in map(str.split, Path("/proc/self/smaps").read_text().splitlines()):
        if not words[0].endswith(":"):  # a mapping begins: addresses, rights, offset, device, inode, path
            is_own = int(words[4]) == path.stat().st_ino
        elif is_own and words[0] in ("ShmemPmdMapped:", "FilePmdMapped:"):
            num_kb += int(words[1])
    return num_kb


def test_new_pages_are_huge_before_a_step_writes_to_them_and_what_is_there_stays(path: Path):
    memory = KVMemory(path, b"1" * 32)
    memory.map(64, 16, 16 << 20)
    tensors = [memory.take((1, 1024, 2, 1024), torch.float32)[0] for _ in range(2)]
    tensors[0][:48] = 7.0
    population = PagePopulation(tensors, 64, is_file=True)
    before_kb = num_huge_kb(path)
    population.use(3, 2)
    num_kb = num_huge_kb(path) - before_kb
    assert bool((tensors[0][:48] == 7.0).all())
    if not num_kb:
        pytest.skip("this system makes no huge pages of a file's memory")
    # A system that is short of free huge pages makes fewer of them.
    assert num_kb <= 2 * 2048, "those of two tensors; no more than a step may be new"
