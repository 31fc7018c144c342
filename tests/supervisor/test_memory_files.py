"""Files in memory for KV caches: one for each scheduler, while a successor is possible."""

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.control.processes import PREDECESSOR, SUCCESSOR
from runtime.numa import file_of_group
from runtime.run_dir import RunDir, claim
from supervisor import memory_files
from supervisor.memory_files import SLICE_BYTES, MemoryFiles


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    run_dir, lock = claim(tmp_path / "run")
    yield run_dir
    os.close(lock)


def test_each_scheduler_finds_what_the_one_before_it_has_left(run_dir: RunDir) -> None:
    files = MemoryFiles(run_dir)
    for name in ("tokenizer", "scheduler", "scheduler-2", f"scheduler-2{SUCCESSOR}", f"scheduler{PREDECESSOR}"):
        files.provide(name)
    assert not run_dir.kv_file("tokenizer").exists()
    run_dir.kv_file("scheduler").write_bytes(b"one")
    run_dir.kv_file("scheduler-2").write_bytes(b"two")
    files.provide("scheduler")
    assert run_dir.kv_file("scheduler").read_bytes() == b"one"
    files.provide("rank1")
    run_dir.kv_file("rank1").write_bytes(b"part")
    files.clear("rank1")
    assert run_dir.kv_file("rank1").read_bytes() == b""
    assert not run_dir.rows_file("rank1").exists()
    files.drop("scheduler-2")
    assert not run_dir.kv_file("scheduler-2").is_symlink()
    files.provide("scheduler-2")
    assert run_dir.kv_file("scheduler-2").read_bytes() == b""
    files.close()
    assert not run_dir.kv_file("scheduler").is_symlink()


def test_nothing_is_left_open(run_dir: RunDir) -> None:
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    files = MemoryFiles(run_dir)
    for number in range(2, 9):
        files.provide(f"scheduler-{number}")
    files.drop("scheduler-4")
    files.drop("tokenizer")
    files.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


def finish() -> None:
    for thread in threading.enumerate():
        if thread.name == "weight-memory":
            thread.join(timeout=60)
            assert not thread.is_alive()


def test_the_weights_have_their_memory_before_anybody_writes_them(run_dir: RunDir) -> None:
    size = SLICE_BYTES + 5000
    files = MemoryFiles(run_dir, size)
    assert run_dir.weights_file.stat().st_size == size
    with run_dir.weights_file.open("r+b") as file:
        file.write(b"written meanwhile")
    files.make_weight_memory()
    finish()
    stat = run_dir.weights_file.stat()
    assert stat.st_size == size
    assert stat.st_blocks * 512 > mmap.PAGESIZE, "not only what was written"
    assert run_dir.weights_file.read_bytes()[:17] == b"written meanwhile"
    files.close()


def test_a_file_that_a_scheduler_has_made_smaller_keeps_its_size(run_dir: RunDir) -> None:
    files = MemoryFiles(run_dir, 4 * SLICE_BYTES)
    os.truncate(run_dir.weights_file, SLICE_BYTES)
    files.make_weight_memory()
    finish()
    assert run_dir.weights_file.stat().st_size == SLICE_BYTES
    files.close()


def test_of_several_nodes_each_scheduler_requests_memory_on_its_own(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_files, "read_nodes", lambda cpus: [[0], [1]])
    files = MemoryFiles(run_dir, SLICE_BYTES)
    files.make_weight_memory()
    finish()
    assert [file_of_group(run_dir.weights_file, group).stat().st_size for group in (0, 1)] == [0, 0]
    files.close()
