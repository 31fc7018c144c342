"""Gets the files of a model that this machine lacks from the head, into a directory of the user's cache.

A file grows as NAME.part and is renamed when it is complete. Parts that an earlier try has written are compared with
the head's by digest, and only those that differ are sent again. For a stage, only its layers are fetched: the rest
of a file is a hole, which takes no room on the disk.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from extras.remote import file_messages
from extras.remote.session import Session
from messages.errors import BootError, errors_as
from runtime.own_directory import own_directory
from supervisor.console import Console
from supervisor.manifest import identify_file
from supervisor.model.gguf.cache import cache_dir

BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


def models_dir() -> Path:
    """Returns the directory for fetched models, next to that of models in GGUF; it need not exist."""
    return cache_dir().with_name("models")


class ModelFetch:
    """A call may raise what a method of `session` raises."""

    def __init__(self, session: Session, console: Console):
        self._session, self._console = session, console

    def __call__(self, directory: file_messages.Directory, local: Path | None) -> Path:
        """Returns a directory with all files; those that are the same in `local` are links there.

        Raises `BootError` for a disk that is too small or cannot be written.
        """
        self._session.send(file_messages.ListFiles(directory))
        files = self._session.receive(file_messages.FileList).files
        for file in files:
            if not file.name or Path(file.name).name != file.name:
                raise BootError(f"the head has listed a file of the name {file.name!r}")
        key = hashlib.sha256(repr(sorted(map(repr, files))).encode()).hexdigest()[:16]
        folder = models_dir() / key
        with errors_as(BootError, f"the model cannot be kept in {folder}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked(folder):
                lacking = [file for file in files if not _is_there(folder / file.name, file, local)]
                self._check_room(folder, lacking)
                for number, file in enumerate(lacking, start=1):
                    transfer = Transfer(directory, file, folder / f"{file.name}.part")
                    self._fetch(transfer, f"{file.name} ({number} of {len(lacking)})")
        return folder

    @contextmanager
    def _locked(self, folder: Path) -> Generator[None]:
        """Waits while another joiner of this machine fetches the model."""
        with own_directory(folder) as descriptor:
            is_shown = False
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not is_shown:
                        self._console.show(f"another process fetches the model into {folder}; waiting")
                    is_shown = True
                    self._session.rest(1.0)
                else:
                    break
            yield

    def _check_room(self, folder: Path, lacking: Sequence[file_messages.RemoteFile]) -> None:
        """Raises `BootError` if the disk has too little room; shows what will be fetched."""
        num_bytes = sum(file.part_bytes(begin) for file in lacking for begin in file.part_begins())
        written = [folder / f"{file.name}.part" for file in lacking]
        there = sum(file.stat().st_blocks * BLOCK_BYTES for file in written if file.is_file())
        free = shutil.disk_usage(folder).free
        if num_bytes - there > free:
            raise BootError(
                f"the model's files need {_mb(num_bytes - there)} more in {folder}, where {_mb(free)} are free: make "
                "room, or name a directory on another disk by XDG_CACHE_HOME"
            )
        if lacking:
            found = f", of which {_mb(there)} have been fetched before" if there else ""
            self._console.show(f"fetching {len(lacking)} files of the head's model, {_mb(num_bytes)}{found}: {folder}")

    def _fetch(self, transfer: "Transfer", title: str) -> None:
        file, part_file = transfer.file, transfer.part_file
        descriptor = os.open(part_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            num_written = os.fstat(descriptor).st_size
            due, asked = deque(file.part_begins()), deque[int]()
            num_bytes, num_here, num_new, begin_s = sum(map(file.part_bytes, due)), 0, 0, time.monotonic()
            while due or asked:
                while due and len(asked) < file_messages.MAX_OPEN_QUESTIONS:
                    asked.append(due.popleft())
                    self._session.send(transfer.question(descriptor, asked[-1], num_written))
                part, begin = self._session.receive(file_messages.ModelPart), asked.popleft()
                size = file.part_bytes(begin)
                if (part.name, part.begin) != (file.name, begin) or len(part.data or bytes(size)) != size:
                    raise BootError(f"the head has sent another part than byte {begin} of {file.name}")
                if part.data is not None and os.pwrite(descriptor, part.data, begin) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                num_here, num_new = num_here + size, num_new + len(part.data or b"")
                if asked:
                    self._console.progress("model", f"fetching {title}", num_here / num_bytes)
            os.ftruncate(descriptor, file.num_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if identify_file(part_file).digest != file.digest:
            raise BootError(f"{part_file} differs from the head's file although it is complete; start again")
        part_file.rename(part_file.with_suffix(""))
        self._console.end_progress()
        rate = num_new / (time.monotonic() - begin_s + 1e-3)
        self._console.show(f"fetched {title}: {_mb(num_bytes)}, {_mb(num_new)} of them now, {_mb(rate)}/s")


class Transfer(NamedTuple):
    """A file that is fetched."""

    directory: file_messages.Directory
    file: file_messages.RemoteFile
    part_file: Path

    def question(self, descriptor: int, begin: int, num_written: int) -> file_messages.SendPart:
        """Asks for a part, with the digest of what an earlier try has written there, if it has."""
        end = begin + self.file.part_bytes(begin)
        digest = hashlib.sha256(os.pread(descriptor, end - begin, begin)).digest() if end <= num_written else b""
        return file_messages.SendPart(self.directory, self.file.name, begin, digest)


def _is_there(path: Path, file: file_messages.RemoteFile, local: Path | None) -> bool:
    """True if the file is complete at `path`, possibly since it is now a link to the same file in `local`."""
    for candidate in (path, local and local / file.name):
        if candidate is not None and candidate.is_file() and identify_file(candidate).digest == file.digest:
            if candidate != path:
                path.unlink(missing_ok=True)
                path.symlink_to(candidate)
            return True
    path.unlink(missing_ok=True)
    return False


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
