"""What reading a model's files may cost, and whose are read first."""

import contextlib
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extras.models import descriptions
from extras.models.config import ModelEntry, ModelsConfig
from extras.models.description import FILE_NAME
from extras.models.descriptions import Descriptions
from extras.models.messages import Description
from extras.models.model_server import ModelServer
from messages.config.server import Config, ModelFacts
from runtime.run_dir import RunDir

TIMEOUT_S = 60.0
NAMES = ("hostile", "first", "second", "third")


def be_good(directory: Path) -> None:
    RunDir(directory).write_config(Config(facts=ModelFacts()))
    (directory / FILE_NAME).write_text('["config.json",1,2]', encoding="ascii")


def compute_for_ever(directory: Path) -> None:
    while True:
        pass


def allocate(directory: Path) -> None:
    with contextlib.suppress(MemoryError):
        bytearray(1 << 32)
        return
    be_good(directory)


def wait_for_ever(directory: Path) -> None:
    time.sleep(3600)


class Reader:
    """The models `NAMES`; the function `hostile` reads the first one's files."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, hostile: Callable[[Path], None]):
        def write(section: Any, entry: ModelEntry, directory: Path, *, may_fetch: bool) -> None:
            self._log.open("a").write(f"{entry.name}\n")
            (hostile if entry.name == "hostile" else be_good)(directory)

        self._log = path / "log"
        patch.setattr(descriptions, "write_description", write)
        entries = [ModelEntry(name=name, flags=("--model=/none",), keep_alive_s=1.0) for name in NAMES]
        (path / "run").mkdir()
        self.servers = {entry.name: ModelServer(entry, RunDir(path / "run"), entry.name) for entry in entries}
        self.stated: list[str] = []
        self.all = Descriptions(ModelsConfig(), self.servers, lambda name, text: self.stated.append(f"{name}: {text}"))

    def wait(self, *names: str) -> None:
        """Waits until the files of these models have been read."""
        deadline_s = time.monotonic() + TIMEOUT_S
        self.all.advance(may_start=True)
        while any(self.servers[name].report.description is None for name in names):
            assert time.monotonic() < deadline_s
            select.select(list(self.all.descriptors), [], [], min(self.all.due_in_s(), 1.0))
            self.all.advance(may_start=True)

    def read(self) -> set[str]:
        """Returns the models whose files have been opened."""
        return set(self._log.read_text().split())

    def error(self) -> str:
        description = self.servers["hostile"].report.description
        assert description is not None
        return description.error


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make_reader(hostile: Callable[[Path], None], **limits: Any) -> Reader:
        for name, value in limits.items():
            monkeypatch.setattr(descriptions, name, value)
        readers.append(Reader(tmp_path, monkeypatch, hostile))
        return readers[-1]

    yield make_reader
    monkeypatch.setattr(descriptions, "WALL_S", 0.0)
    for reader in readers:  # ends what still runs
        for reading in reader.all._readings.values():  # pyright: ignore[reportPrivateUsage]
            reading.kill_at_s = 0.0
        while reader.all.descriptors:
            reader.all.advance(may_start=False)


@pytest.mark.parametrize(
    ("hostile", "error", "limits"),
    [
        (compute_for_ever, "took over 1 s of CPU time", {"CPU_S": 1}),
        (wait_for_ever, "took over 0.5 s", {"WALL_S": 0.5}),
    ],
)
def test_files_that_take_too_long_are_provided_up_and_the_others_are_read(
    make: Callable[..., Reader], hostile: Callable[[Path], None], error: str, limits: dict[str, Any]
):
    reader = make(hostile, **limits)
    reader.wait(*NAMES)
    assert error in reader.error()
    assert [text for text in reader.stated if error in text]
    found = [reader.servers[name].report.description for name in NAMES[1:]]
    assert found == [Description("config.json", 1, 2)] * 3


def test_files_cannot_take_much_memory(make: Callable[..., Reader]):
    reader = make(allocate, MEMORY_BYTES=64 << 20)
    reader.wait(*NAMES)
    assert reader.error() == "", "the allocation has failed"


def test_a_model_that_a_request_requests_is_read_while_another_is(make: Callable[..., Reader]):
    reader = make(wait_for_ever, WARN_S=0.1)
    reader.all.advance(may_start=True)
    reader.all.want("third", may_fetch=True)
    reader.wait("third")
    stated = "hostile: its files have been read for 0.1 s; others are read when a request names them"
    while stated not in reader.stated or "hostile" not in reader.read():
        select.select([], [], [], min(reader.all.due_in_s(), 0.05))
        reader.all.advance(may_start=True)
    assert reader.read() == {"hostile", "third"}
