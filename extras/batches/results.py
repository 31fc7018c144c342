"""The result files of a batch. Each answered line has a result, so a restarted batch does not run it again."""

import errno
import fcntl
import os
import secrets
from pathlib import Path

import msgspec
from msgspec import Raw

from frontend.http.in_process import Reply
from messages.errors import SluiceError


class LineResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class LineFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class LineResult(msgspec.Struct, frozen=True):
    id: str
    custom_id: str
    response: LineResponse | None
    error: LineFailure | None

    @property
    def is_failed(self) -> bool:
        return self.response is None or self.response.status_code != 200


BEGINNING = b'{"id":"batch_req_'
"""How every result begins. The end of a file that begins otherwise was not written by this program."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors that freeing disk space resolves."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LineResult)


class ResultsError(SluiceError):
    """A result file cannot be continued: it holds something else, or another process writes it."""


class Results:
    """Appends results to `output`, those of failed lines to `errors`, which may be the same file.

    No other process may write the files until `close`. Call `load` first. Raises `ResultsError`, and `OSError`.
    """

    def __init__(self, output: Path, errors: Path):
        self.answered: set[str] = set()
        """The custom ids of all lines that have a result."""
        self.num_failed = 0
        self.is_synced = True
        self._files: dict[Path, int] = {}
        try:
            for path in dict.fromkeys((output, errors)):
                self._files[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                _lock(path, self._files[path])
        except BaseException:
            self.close()
            raise
        self._output, self._errors = self._files[output], self._files[errors]

    def load(self) -> None:
        """Reads what has been answered already. What a crash has torn at the end of a file is cut off.

        Raises `ResultsError` for a file of something else.
        """
        for path, descriptor in self._files.items():
            self._load(path, descriptor)

    def _load(self, path: Path, descriptor: int) -> None:
        num_bytes = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                is_whole = line.endswith(b"\n")
                if not is_whole and BEGINNING.startswith(line.rstrip(b"\0")[: len(BEGINNING)]):
                    os.ftruncate(descriptor, num_bytes)
                    return
                try:
                    seen = _decoder.decode(line if is_whole else b"")
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    raise ResultsError(
                        f"{path} line {number} is no result of a batch: name another file, or remove the line"
                    ) from None
                num_bytes += len(line)
                self._record(seen.custom_id, is_failed=seen.is_failed)

    def _record(self, custom_id: str, *, is_failed: bool) -> None:
        self.answered.add(custom_id)
        self.num_failed += is_failed

    @property
    def num_completed(self) -> int:
        return len(self.answered) - self.num_failed

    def add(self, custom_id: str, reply: Reply | LineFailure) -> None:
        """Appends the result of a line, which has none yet. It is on disk after the next `sync`. Raises `OSError`."""
        name = f"batch_req_{secrets.token_hex(12)}"
        if isinstance(reply, Reply):
            response = LineResponse(reply.status, reply.request_id, Raw(reply.body))
            result = LineResult(name, custom_id, response, None)
        else:
            result = LineResult(name, custom_id, None, reply)
        line, is_failed = _encoder.encode(result) + b"\n", result.is_failed
        descriptor = self._errors if is_failed else self._output
        num_written = os.write(descriptor, line)
        if num_written != len(line):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - num_written)
            raise OSError(errno.ENOSPC, "the disk took only a part of a result")
        self._record(custom_id, is_failed=is_failed)
        self.is_synced = False

    def sync(self) -> None:
        """Flushes everything that was added to disk. Raises `OSError`."""
        self.is_synced = True
        for descriptor in self._files.values():
            os.fsync(descriptor)

    def close(self) -> None:
        """May be called again."""
        while self._files:
            os.close(self._files.popitem()[1])


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ResultsError(f"{path}: another process is writing results to it") from None
