"""Records each frame of a process in the black box and, with `--record`, in a recording."""

import contextlib
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from messages.config.server import Config
from messages.frame_files import IS_SENT, SUFFIX, FrameFileError, FrameReader
from runtime.black_box.frame_writer import FrameWriter
from runtime.run_dir import RunDir

MIB = 1 << 20
MAX_FILE_BYTES = 16 * MIB
"""Maximum size of a recording's file; the recording continues in another one."""

NUM_FILES = 4
"""Minimum number of files for a process's share of a recording, so that removing one keeps the others."""

OnFrame = Callable[[bytes], None]

log = logging.getLogger("sluice.black_box")


class FrameRecorder:
    """Records the frames of process `name`. If the disk is full, the process serves without a record."""

    def __init__(self, name: str, config: Config, run_dir: RunDir):
        self._name = name
        self._keepers: list[FrameWriter | Recording] = []
        run = config.run
        num_encoders = 0 if config.facts.vision is None else config.images.encoder_workers
        num_processes = run.frontend_workers + run.tokenizer_workers + num_encoders + config.num_engines + 1
        if run.black_box_mb:
            # A replaced process leaves its file, so there are two per name.
            num_bytes = run.black_box_mb * MIB // num_processes // 2
            self._keep(lambda: make_black_box(run_dir.black_box, name, num_bytes))
        if run.record:
            num_bytes = int(run.record_gb * 1024 * MIB) // num_processes
            self._keep(lambda: Recording(Path(run.record), name, num_bytes))

    def _keep(self, make: "Callable[[], FrameWriter | Recording]") -> None:
        try:
            self._keepers.append(make())
        except OSError as error:
            log.error("the frames of the %s are not recorded: %s", self._name, error)

    def sent_to(self, receiver: str) -> OnFrame | None:
        """Returns the function to call with each frame sent to `receiver`, `None` if frames are not recorded."""
        return self._record(IS_SENT, receiver)

    def received_as(self, receiver: str) -> OnFrame | None:
        """Returns the function to call with each frame received as `receiver`, `None` if frames are not recorded."""
        return self._record(0, receiver)

    def _record(self, flags: int, receiver: str) -> OnFrame | None:
        keep = [partial(keeper.add, flags, receiver.encode()) for keeper in self._keepers]
        if len(keep) < 2:
            return keep[0] if keep else None

        def keep_all(frame: bytes) -> None:
            for one in keep:
                one(frame)

        return keep_all

    def close(self) -> None:
        """Call this after all channels are closed."""
        for keeper in self._keepers:
            keeper.close()


def make_black_box(folder: Path, name: str, num_bytes: int) -> FrameWriter:
    """Returns the ring of this process in `folder`. Keeps only the latest file of earlier processes with this name.

    Raises `OSError`.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    for file in _files_of(name, folder)[:-1]:
        file.unlink(missing_ok=True)
    return FrameWriter(folder / f"{name}.{os.getpid()}{SUFFIX}", name, num_bytes)


class Recording:
    """Records all frames of a process in files, and removes the oldest ones to stay within `num_bytes`."""

    def __init__(self, folder: Path, name: str, num_bytes: int):
        self._folder = folder
        self._name = name
        self._file_bytes = min(MAX_FILE_BYTES, num_bytes // NUM_FILES)
        self._max_files = num_bytes // self._file_bytes
        self._num_files = 0
        self._writer: FrameWriter | None = self._begin_file()

    def add(self, flags: int, receiver: bytes, frame: bytes) -> None:
        """Adds a record. The recording ends if the disk is full."""
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
    """Returns the files of all processes with this name, oldest first."""
    begun: dict[Path, int] = {}
    for file in folder.glob(f"{name}.*{SUFFIX}"):
        with contextlib.suppress(FrameFileError):  # another process of this name is removing or creating it
            begun[file] = FrameReader(file).begun_ns
    return sorted(begun, key=begun.__getitem__)
