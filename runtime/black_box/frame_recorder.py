"""What one process does with each of its frames: into the black box, and with `--record` into a recording."""

import contextlib
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from messages.config.server import Config
from messages.frame_files import IS_SENT, SUFFIX, FrameFileError, FrameReader
from runtime.black_box.frame_writer import FrameWriter
from runtime.run_dir import RunDir

MIB = 1 << 20
MAX_FILE_BYTES = 16 * MIB
"""Of a recording; it goes on in another one."""

NUM_FILES = 4
"""Files that a process's share of a recording has at least: as one of them is removed, the others stay."""

OnFrame = Callable[[bytes], None]

log = logging.getLogger("sluice.black_box")


class Keeper(Protocol):
    def add(self, flags: int, receiver: bytes, frame: bytes) -> None: ...

    def close(self) -> None: ...


class FrameRecorder:
    """The frames of process `name`. Where the disk has no room they are not kept, and the process serves."""

    def __init__(self, name: str, config: Config, run_dir: RunDir):
        self._name = name
        self._keepers: list[Keeper] = []
        run = config.run
        num_processes = run.frontend_workers + run.tokenizer_workers + config.num_engines + 1
        if run.black_box_mb:
            # A process that is replaced leaves its file: there are two of each name.
            num_bytes = run.black_box_mb * MIB // num_processes // 2
            self._keep(lambda: make_black_box(run_dir.black_box, name, num_bytes))
        if run.record:
            num_bytes = int(run.record_gb * 1024 * MIB) // num_processes
            self._keep(lambda: Recording(Path(run.record), name, num_bytes))

    def _keep(self, make: Callable[[], Keeper]) -> None:
        try:
            self._keepers.append(make())
        except OSError as error:
            log.error("the frames of the %s are not kept: %s", self._name, error)

    def sent_to(self, receiver: str) -> OnFrame | None:
        """Returns what is to be called with each frame that goes to `receiver`, `None` where none is kept."""
        return self._note(IS_SENT, receiver)

    def received_as(self, receiver: str) -> OnFrame | None:
        """Returns what is to be called with each frame that arrives at `receiver`, `None` where none is kept."""
        return self._note(0, receiver)

    def _note(self, flags: int, receiver: str) -> OnFrame | None:
        keep = [partial(keeper.add, flags, receiver.encode()) for keeper in self._keepers]
        if len(keep) < 2:
            return keep[0] if keep else None

        def keep_all(frame: bytes) -> None:
            for one in keep:
                one(frame)

        return keep_all

    def close(self) -> None:
        """Call it when all channels are closed."""
        for keeper in self._keepers:
            keeper.close()


def make_black_box(folder: Path, name: str, num_bytes: int) -> FrameWriter:
    """Returns the ring of this process in `folder`; of those before it under its name, the latest one stays.

    Raises `OSError`.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    for file in _files_of(name, folder)[:-1]:
        file.unlink(missing_ok=True)
    return FrameWriter(folder / f"{name}.{os.getpid()}{SUFFIX}", name, num_bytes)


class Recording:
    """All frames of a process, in files of which the oldest go when there would be more than `num_bytes`."""

    def __init__(self, folder: Path, name: str, num_bytes: int):
        self._folder = folder
        self._name = name
        self._file_bytes = min(MAX_FILE_BYTES, num_bytes // NUM_FILES)
        self._max_files = num_bytes // self._file_bytes
        self._num_files = 0
        self._writer: FrameWriter | None = self._begin_file()

    def add(self, flags: int, receiver: bytes, frame: bytes) -> None:
        """Adds a record; where the disk is full, the recording ends."""
        if self._writer is not None and not self._writer.has_room(receiver, frame):
            self.close()
            try:
                self._writer = self._begin_file()
            except OSError as error:
                log.error("the recording of the %s ends: %s", self._name, error)
        if self._writer is not None:
            self._writer.add(flags, receiver, frame)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin_file(self) -> FrameWriter:
        for file in _files_of(self._name, self._folder)[: 1 - self._max_files]:
            file.unlink(missing_ok=True)
        self._num_files += 1
        name = f"{self._name}.{os.getpid()}.{self._num_files:06}{SUFFIX}"
        return FrameWriter(self._folder / name, self._name, self._file_bytes)


def _files_of(name: str, folder: Path) -> list[Path]:
    """Returns the files of the processes that have had this name, the oldest first."""
    begun: dict[Path, int] = {}
    for file in folder.glob(f"{name}.*{SUFFIX}"):
        with contextlib.suppress(FrameFileError):  # removed, or just being made, by another process of this name
            begun[file] = FrameReader(file).begun_ns
    return sorted(begun, key=begun.__getitem__)
