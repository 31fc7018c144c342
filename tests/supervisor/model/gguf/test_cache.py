"""The cache of model directories is bounded, and never loses a directory that a server uses."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.config.server import ModelFacts
from supervisor.model.gguf import cache
from supervisor.python_process import ROOT

OLD_S = 7200.0


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parent = cache.cache_dir()
    parent.mkdir(mode=0o700, parents=True)
    yield parent
    for descriptor in cache._held.values():
        os.close(descriptor)
    cache._held.clear()


def make(parent: Path, name: str, age_s: float, num_bytes: int = 10) -> Path:
    directory = parent / name
    directory.mkdir(mode=0o700)
    (directory / "tokenizer.json").write_bytes(bytes(num_bytes))
    (directory / "model.gguf").symlink_to("/dev/null")
    os.utime(directory, times=(0, time.time() - age_s))
    return directory


def names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def test_the_least_recently_used_are_removed(parent: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(6):
        make(parent, f"m-{number}", OLD_S + number)
    monkeypatch.setattr(cache, "MAX_DIRECTORIES", 4)
    cache.prune(parent)
    assert names(parent) == {"m-0", "m-1", "m-2", "m-3"}
    monkeypatch.setattr(cache, "MOST_BYTES", 50)
    cache.prune(parent)
    assert names(parent) == {"m-0", "m-1"}


def test_those_of_the_last_hour_stay_and_what_was_left_incomplete_goes(parent: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MAX_DIRECTORIES", 0)
    for name, age_s in (("m-new", 60.0), ("part-new", 60.0), ("m-old", OLD_S), ("part-old", OLD_S)):
        make(parent, name, age_s)
    cache.prune(parent)
    assert names(parent) == {"m-new", "part-new"}


def test_a_directory_of_a_running_server_stays(parent: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process holds it, as a launcher does for the model that it serves."""
    monkeypatch.setattr(cache, "MAX_DIRECTORIES", 0)
    directory = make(parent, "m-used", OLD_S)
    code = (
        "import sys; from pathlib import Path; from supervisor.model.gguf.cache import hold\n"
        "assert hold(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, directory], stdin=pipe, stdout=pipe, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        os.utime(directory, times=(0, time.time() - OLD_S))
        cache.prune(parent)
        assert names(parent) == {"m-used"}
        holder.communicate()
    cache.prune(parent)
    assert names(parent) == set()


def test_a_server_of_several_models_holds_each(parent: Path, monkeypatch: pytest.MonkeyPatch):
    directory = make(parent, "m-described", OLD_S)
    facts = ModelFacts(
        model_dir=str(directory), tokenizer_dir="/elsewhere", served_names=("m",), vocab_size=9, max_model_len=9
    )
    cache.hold_directories(facts)
    assert list(cache._held) == [directory]
    assert time.time() - directory.stat().st_mtime < OLD_S / 2  # it is now the one used last
