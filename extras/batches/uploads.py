"""A file being uploaded: it counts against the quota before its bytes arrive, and a failed one leaves nothing."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from messages.errors import RequestError

SUFFIX = ".upload"

RESERVED_BYTES = 2**20
"""Reserved in advance if the length of an upload was not announced."""


class Upload:
    """A new file in `folder`. It has its reserved size, so that every frontend counts it.

    It is locked while this process lives: one without a lock was left by a process that died. `check_room` raises
    `RequestError` if all files together are too large. The methods block.
    """

    def __init__(self, folder: Path, check_room: Callable[[], None]):
        name = secrets.token_hex(12)
        self.path = folder / f"{name}{SUFFIX}"
        self._check_room = check_room
        self._num_reserved = 0
        self._num_bytes = 0
        unlocked = folder / f"{name}.tmp"
        self._descriptor = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        unlocked.rename(self.path)

    def reserve(self, num_bytes: int) -> None:
        """Reserves `num_bytes` in total. Raises `RequestError` and `OSError`."""
        os.ftruncate(self._descriptor, num_bytes)
        self._check_room()
        self._num_reserved = num_bytes

    def write(self, data: bytes) -> None:
        """Appends `data`. Raises `RequestError` and `OSError`."""
        num_bytes = self._num_bytes + len(data)
        if num_bytes > self._num_reserved:
            try:
                self.reserve(num_bytes + RESERVED_BYTES)
            except RequestError:
                self.reserve(num_bytes)
        while data:
            num_written = os.pwrite(self._descriptor, data, self._num_bytes)
            self._num_bytes += num_written
            data = data[num_written:]

    def finish(self) -> None:
        """Truncates the file to the bytes written and flushes it to disk. Raises `OSError`."""
        os.ftruncate(self._descriptor, self._num_bytes)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Removes the file, unless it has been renamed."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def left_over(folder: Path) -> Iterator[Path]:
    """Yields the uploads in `folder` whose process died."""
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
