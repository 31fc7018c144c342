"""Files in memory for KV caches: one for each scheduler, as long as somebody may come after it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.control import PREDECESSOR, SUCCESSOR
from runtime.run_dir import RunDir, claim
from supervisor.memory_files import MemoryFiles


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
