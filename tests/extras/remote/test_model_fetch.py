"""Files of a model come from the head: whole, resumed, compared, and only those of the model."""

import hashlib
import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from extras.remote import file_server
from extras.remote.file_messages import FILE_PART_BYTES, Directory, FileList, ListFiles, ModelPart, SendPart
from extras.remote.file_server import MAX_QUEUED, FileServer, layers_of
from extras.remote.join_keys import HeadKeys, JoinKeys, make_keys
from extras.remote.messages import ToProxy, TurnedAway
from extras.remote.model_fetch import ModelFetch, models_dir
from extras.remote.secure_channels import HeadChannel
from extras.remote.session import NoHeadError, RefusedError, Session
from messages.config.server import Config, ModelFacts, RunConfig
from messages.errors import BootError
from runtime.stage_files import ALL_LAYERS
from supervisor.console import Console
from supervisor.manifest import identify_file
from supervisor.signals import SignalPipe
from tests.free_port import find_free_port

NUM_PARTS = 20
WEIGHTS = random.Random(1).randbytes(NUM_PARTS * FILE_PART_BYTES - 1000)
FILES = {"config.json": b"{}", "tokenizer.json": b"[]" * 50_000, "empty.txt": b"", "model.safetensors": WEIGHTS}


class Head:
    """Answers joiners as a proxy does, and closes its end after `num_parts` parts with bytes, if that is given."""

    def __init__(self, model_dir: Path, keys: HeadKeys, num_parts: int | None = None, rank: int = 0):
        facts = ModelFacts(
            model_dir=str(model_dir), tokenizer_dir=str(model_dir), served_names=("a",), vocab_size=1, max_model_len=9
        )
        config = Config(facts=facts, run=RunConfig(pipeline_parallel=3, stages="1,1,1"))
        self.files = FileServer(config, lambda: None, rank)
        self.address = f"tcp://127.0.0.1:{find_free_port()}"
        self._channel: HeadChannel[Any] = HeadChannel(self.address, keys, ToProxy)
        self._num_parts = num_parts
        self.num_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over.wait(0.001):
            for peer, message in self._channel.receive():
                if isinstance(message, ListFiles | SendPart):
                    self.files.ask(peer, message)
            for peer, answer in self.files.answers():
                self._channel.send(peer, answer)
                if isinstance(answer, ModelPart) and answer.data:
                    self.num_bytes += len(answer.data)
                    if self._num_parts is not None and self.num_bytes >= self._num_parts * FILE_PART_BYTES:
                        self._is_over.set()
                        break
        self._channel.close()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


Joining = Callable[..., Any]


@pytest.fixture
def keys() -> tuple[HeadKeys, JoinKeys]:
    return make_keys()


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's, while the cache of the joiner is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    directory.mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    (directory / "key.pem").write_bytes(b"secret")
    return directory


@contextmanager
def joined(
    model_dir: Path, keys: tuple[HeadKeys, JoinKeys], num_parts: int | None = None, rank: int = 0
) -> Iterator[tuple[Head, Any]]:
    head = Head(model_dir, keys[0], num_parts, rank)
    try:
        with SignalPipe() as signals, Session(head.address, keys[1], signals) as session:
            yield head, session
    finally:
        head.close()


def fetch(session: Session, local: Path | None = None) -> Path:
    return ModelFetch(session, Console())("model", local)


def part_file() -> Path:
    (path,) = models_dir().glob("*/model.safetensors.part")
    return path


def test_a_transfer_continues_where_it_broke_off_and_compares_what_is_there(
    model_dir: Path, keys: tuple[HeadKeys, JoinKeys], capfd: pytest.CaptureFixture[str]
):
    with joined(model_dir, keys, num_parts=7) as (head, session), pytest.raises(NoHeadError):
        fetch(session)
    written = part_file()
    num_written = written.stat().st_size // FILE_PART_BYTES
    assert 0 < num_written <= 7
    with written.open("r+b") as file:  # one part was damaged, and another one only begun, when the joiner was killed
        file.seek(5000)
        file.write(b"damage")
        file.truncate(written.stat().st_size + 100)
    with joined(model_dir, keys) as (head, session):
        folder = fetch(session)
        assert head.num_bytes == len(WEIGHTS) - (num_written - 1) * FILE_PART_BYTES
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert folder.parent == models_dir()
    assert re.search(r"fetching 1 files of the head's model, 21\.0 MB, of which [1-7]\.\d MB", capfd.readouterr().err)
    with joined(model_dir, keys) as (head, session):
        assert fetch(session) == folder
        assert head.num_bytes == 0, "all files are here"


def test_files_that_are_here_are_not_fetched(model_dir: Path, keys: tuple[HeadKeys, JoinKeys], tmp_path: Path):
    local = tmp_path / "local"
    local.mkdir()
    shutil.copy(model_dir / "model.safetensors", local)
    with joined(model_dir, keys) as (head, session):
        folder = fetch(session, local)
        assert head.num_bytes == sum(len(FILES[name]) for name in FILES.keys() - {"model.safetensors"})
    assert (folder / "model.safetensors").readlink() == local / "model.safetensors"


def test_a_stage_gets_its_layers_and_the_rest_of_the_file_is_a_hole(model_dir: Path, keys: tuple[HeadKeys, JoinKeys]):
    size = 5 * FILE_PART_BYTES
    tensors = {f"model.layers.{number}.weight": numpy.full(size, number + 1, "u1") for number in range(3)}
    save_file(tensors, model_dir / "model.safetensors")
    num_bytes = (model_dir / "model.safetensors").stat().st_size
    with joined(model_dir, keys, rank=2) as (head, session):
        folder = fetch(session)
    file = folder / "model.safetensors"
    assert file.stat().st_size == num_bytes
    assert size < head.num_bytes < size + 4 * FILE_PART_BYTES
    assert file.stat().st_blocks * 512 < num_bytes - size
    found = load_file(file)
    assert (found["model.layers.1.weight"] == 2).all()
    assert identify_file(file) == identify_file(model_dir / "model.safetensors")
    with joined(model_dir, keys, rank=1) as (head, session):
        assert fetch(session) != folder, "other layers are in another directory"


def test_layers_of_a_stage_come_from_its_flag():
    assert [layers_of("12,20,4", rank) for rank in (1, 2)] == [range(12), range(12, 32)]
    assert layers_of("12,20", 0) == layers_of("auto", 1) == ALL_LAYERS


def test_a_disk_that_is_too_small_is_refused_with_numbers(
    model_dir: Path, keys: tuple[HeadKeys, JoinKeys], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1_000_000))  # pyright: ignore
    with joined(model_dir, keys) as (head, session):
        with pytest.raises(BootError, match=r"need 21\.1 MB more in .*, where 1\.0 MB are free: .*XDG_CACHE_HOME"):
            fetch(session)
        assert head.num_bytes == 0


def test_without_the_key_nothing_is_sent(model_dir: Path, keys: tuple[HeadKeys, JoinKeys]):
    good, (_, other) = keys[1], make_keys()
    bad = JoinKeys(good.head_public, other.public, other.secret)
    with joined(model_dir, (keys[0], bad)) as (head, session):
        with pytest.raises(RefusedError, match="does not know this key"):
            fetch(session)
        assert head.num_bytes == 0
    assert not models_dir().exists()


@pytest.fixture
def server(model_dir: Path) -> FileServer:
    facts = ModelFacts(
        model_dir=str(model_dir), tokenizer_dir=str(model_dir), served_names=("a",), vocab_size=1, max_model_len=9
    )
    return FileServer(Config(facts=facts), lambda: None)


def test_only_listed_files_are_sent_as_they_were_listed(server: FileServer, model_dir: Path):
    def ask(name: str, begin: int = 0, directory: Directory = "model") -> object:
        return server._read(SendPart(directory, name, begin, b""))

    assert isinstance(ask("config.json"), TurnedAway), "nothing is listed yet"
    listed = server._list(ListFiles("model"))
    assert isinstance(listed, FileList)
    assert {file.name for file in listed.files} == FILES.keys()
    assert ask("config.json") == ModelPart("config.json", 0, b"{}")
    digest = hashlib.sha256(b"{}").digest()
    assert server._read(SendPart("model", "config.json", 0, digest)) == ModelPart("config.json", 0, None)
    for name in ("key.pem", "../model/config.json", str(model_dir / "config.json"), "/etc/passwd", "", "."):
        assert isinstance(ask(name), TurnedAway), name
    for begin in (-1, 3, 1 << 63):
        assert isinstance(ask("config.json", begin), TurnedAway), begin
    assert isinstance(ask("config.json", 0, "tokenizer"), TurnedAway)
    assert isinstance(server._list(ListFiles("draft")), TurnedAway)
    (model_dir / "tokenizer.json").unlink()
    (model_dir / "tokenizer.json").symlink_to(model_dir / "key.pem")
    answer = ask("tokenizer.json")
    assert isinstance(answer, TurnedAway)
    assert "has changed" in answer.reason


def test_a_slow_disk_delays_no_other_work_and_a_flood_of_questions_is_refused(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
):
    server._list(ListFiles("model"))
    may_read, pread = threading.Event(), os.pread

    def read_slowly(*arguments: int) -> bytes:
        assert may_read.wait(60.0)
        return pread(*arguments)

    monkeypatch.setattr(file_server.os, "pread", read_slowly)
    woken = threading.Semaphore(0)
    server._wake = cast("Any", woken.release)
    num_questions = MAX_QUEUED + 2
    for _ in range(num_questions):
        server.ask(b"a", SendPart("model", "config.json", 0, b""))
    refused = list(server.answers())
    assert 1 <= len(refused) <= 2
    assert all(isinstance(answer, TurnedAway) for _, answer in refused)
    may_read.set()
    for _ in range(num_questions - len(refused)):
        assert woken.acquire(timeout=60.0)
    assert list(server.answers()) == [(b"a", ModelPart("config.json", 0, b"{}"))] * (num_questions - len(refused))
