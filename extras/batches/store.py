"""The batch directory: files and batches as they are on disk, where every frontend finds them.

A record is a JSON file that is always complete. The process that holds the lock runs the batches and changes their
records. The others add batches, and cancel one by a file next to its record.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

import msgspec

from extras.batches.records import BatchRecord, FileRecord, Purpose
from extras.batches.uploads import SUFFIX as UPLOAD_SUFFIX
from extras.batches.uploads import Upload, left_over
from frontend.errors import not_found
from frontend.requests.client import INTERNAL, Client
from messages.errors import BootError, ErrorInfo, RequestError, errors_as, quoted
from runtime.own_directory import own_directory

KEEP_S = 30 * 86400
"""How long batches are kept after their creation, and files whose owner has set no time."""

MAX_FILES = 10_000
MAX_BATCHES = 10_000
"""Records of batches that are kept; a new one beyond this limit replaces the oldest one that has ended."""

ORPHAN_S = 86400.0
"""Age at which a file without a record, left by a crash, is removed."""

FRESH_NS = 2_000_000_000
"""A directory that was changed so lately may change again within the resolution of its time stamp."""

_ID = re.compile(r"(?:file-[0-9a-f]{24}(?:-output|-error)?|batch_[0-9a-f]{24})\Z")

R = TypeVar("R", BatchRecord, FileRecord)


class BatchStore:
    """Its methods read and write the disk; what raises `RequestError` is a client's mistake (404, 413)."""

    def __init__(self, path: Path, quota_bytes: int):
        """Makes the directory. Raises `BootError` if that is not possible."""
        self._files, self._batches, self._lock_file = path / "files", path / "batches", path / "lock"
        self._quota_bytes = quota_bytes
        self._scanned_ns = 0
        self._ended: set[str] = set()
        self._open: list[BatchRecord] = []
        with errors_as(BootError, f"--batch-dir {path} cannot be written"):
            for folder in (self._files, self._batches):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with own_directory(folder):
                    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            for upload in left_over(self._files):
                upload.unlink(missing_ok=True)

    def try_lock(self) -> int | None:
        """Returns a descriptor that holds the lock while it is open; `None` if another process holds it."""
        lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    # Files.

    def begin_upload(self) -> Upload:
        """Returns an empty upload, which `add_file` turns into a file. Close it in any case, also after `add_file`."""
        return Upload(self._files, self._check_room)

    def _check_room(self) -> None:
        """Raises `RequestError` (413) if the files, uploads included, are too many or too large."""
        used = num_files = 0
        for folder in (self._files, self._batches):
            for path, stat in _scan(folder):
                used += stat.st_size // max(1, stat.st_nlink)
                num_files += path.suffix in (".jsonl", UPLOAD_SUFFIX) and folder is self._files
        if used > self._quota_bytes:
            message = (
                f"there is no room for this file: with it, files, results and uploads in progress would have {used} "
                f"bytes, and at most {self._quota_bytes} are allowed (--batch-dir-gb): delete files, or try again later"
            )
            raise RequestError(ErrorInfo(413, message, code="storage_full"))
        if num_files > MAX_FILES:
            raise RequestError(ErrorInfo(413, f"{MAX_FILES} files are stored: delete some", code="storage_full"))

    def add_file(self, upload: Upload, filename: str, purpose: Purpose, keep_s: int, key: str = "") -> FileRecord:
        """Turns `upload` into a file, which belongs to the key with that name."""
        file_id = f"file-{_new_hex()}"
        upload.finish()
        upload.path.rename(self.content(file_id))
        try:
            return self._add_record(file_id, filename, purpose, keep_s, key)
        except OSError:
            self._forget_file(file_id)
            raise

    def _add_record(self, file_id: str, filename: str, purpose: str, keep_s: int, key: str) -> FileRecord:
        now_s = int(time.time())
        size = self.content(file_id).stat().st_size
        fields = {"id": file_id, "bytes": size, "created_at": now_s, "expires_at": now_s + keep_s}
        fields |= {"key": key} if key else {}
        record = msgspec.convert({**fields, "filename": filename, "purpose": purpose}, FileRecord)
        _write(self._files / f"{file_id}.json", record)
        return record

    def content(self, file_id: str) -> Path:
        return self._files / f"{file_id}.jsonl"

    def find_file(self, file_id: str, client: Client = INTERNAL) -> FileRecord:
        """Returns a file that the client may see."""
        record = _read(self._files, file_id, FileRecord)
        if record is None or record.expires_at <= time.time() or not _is_plain(self.content(file_id)):
            raise _not_found("file", file_id)
        if not record.belongs_to(client):
            raise _not_found("file", file_id)
        return record

    def read_file(self, file_id: str, client: Client, max_bytes: int) -> bytes:
        """Returns a file that the client may see, or of a larger one at least one byte more than `max_bytes`."""
        self.find_file(file_id, client)
        try:
            with self.content(file_id).open("rb") as file:
                return file.read(max_bytes + 1)
        except FileNotFoundError:
            raise _not_found("file", file_id) from None

    def list_files(self, client: Client = INTERNAL) -> Iterator[FileRecord]:
        """Returns the files that the client may see, the newest first."""
        records = (record for record in _records(self._files, FileRecord) if record.belongs_to(client))
        return (record for record in records if record.expires_at > time.time())

    def delete_file(self, file_id: str, client: Client = INTERNAL) -> None:
        """Deletes the file. A batch that reads it continues, since it has its own link."""
        self.find_file(file_id, client)
        self._forget_file(file_id)

    def _forget_file(self, file_id: str) -> None:
        for path in (self._files / f"{file_id}.json", self.content(file_id)):
            path.unlink(missing_ok=True)

    # Batches, for processes that answer clients.

    def add_batch(self, record: BatchRecord) -> BatchRecord:
        """Stores `record` under a new id; the owner of the lock finds it there."""
        record = msgspec.structs.replace(record, id=f"batch_{_new_hex()}")
        try:
            os.link(self.content(record.input_file_id), self.input(record), follow_symlinks=False)
            if not _is_plain(self.input(record)):
                self.input(record).unlink()
                raise FileNotFoundError
        except FileNotFoundError:
            raise _not_found("file", record.input_file_id) from None
        try:
            self.write_batch(record)
        except OSError:
            self.input(record).unlink(missing_ok=True)
            raise
        for name in _ids(self._batches)[MAX_BATCHES:]:
            old = _read(self._batches, name, BatchRecord)
            if old is not None and not old.is_open:
                self._forget_batch(name)
        return record

    def _forget_batch(self, batch_id: str) -> None:
        (self._batches / f"{batch_id}.json").unlink(missing_ok=True)

    def find_batch(self, batch_id: str, client: Client = INTERNAL) -> BatchRecord:
        """Returns a batch that the client may see."""
        record = _read(self._batches, batch_id, BatchRecord)
        if record is None or not record.belongs_to(client):
            raise _not_found("batch", batch_id)
        return self._as_asked(record)

    def _as_asked(self, record: BatchRecord) -> BatchRecord:
        with contextlib.suppress(FileNotFoundError):
            if record.is_open:
                return record.become("cancelling", int(self._cancel_mark(record.id).stat().st_mtime))
        return record

    def list_batches(self, client: Client = INTERNAL) -> Iterator[BatchRecord]:
        """Returns the batches that the client may see, the newest first."""
        records = (record for record in _records(self._batches, BatchRecord) if record.belongs_to(client))
        return map(self._as_asked, records)

    def cancel(self, record: BatchRecord) -> None:
        """Asks the owner of the lock to end an open batch."""
        self._cancel_mark(record.id).touch()

    def _cancel_mark(self, batch_id: str) -> Path:
        return self._batches / f"{batch_id}.cancel"

    # Batches, for the owner of the lock.

    def find_open(self) -> list[BatchRecord]:
        """Returns the batches that have not ended, the oldest first; reads them only where something has changed."""
        changed_ns = self._batches.stat().st_mtime_ns
        if changed_ns != self._scanned_ns or time.time_ns() - changed_ns < FRESH_NS:
            self._scanned_ns = changed_ns
            ids = _ids(self._batches)
            self._ended.intersection_update(ids)
            names = [name for name in ids if name not in self._ended]
            records = [record for name in names if (record := _read(self._batches, name, BatchRecord)) is not None]
            self._ended.update(record.id for record in records if not record.is_open)
            self._open = [self._as_asked(record) for record in reversed(records) if record.is_open]
        return self._open

    def input(self, record: BatchRecord) -> Path:
        """The batch's own link to its input file."""
        return self._batches / f"{record.id}.jsonl"

    def results(self, record: BatchRecord) -> tuple[Path, Path]:
        """The contents of output and error file, which become files of clients by `publish`."""
        output_id, error_id = _result_ids(record)
        for path in (self.content(output_id), self.content(error_id)):
            if path.is_symlink():
                path.unlink()
        return self.content(output_id), self.content(error_id)

    def publish(self, record: BatchRecord, keep_s: int) -> tuple[str | None, str | None]:
        """Makes files of what there are of results; returns their ids, `None` for an empty one, which is removed."""
        output_id, error_id = _result_ids(record)
        key = record.key or ""
        return self._publish(output_id, keep_s, key), self._publish(error_id, keep_s, key)

    def _publish(self, file_id: str, keep_s: int, key: str) -> str | None:
        if not self.content(file_id).stat().st_size:
            self.content(file_id).unlink()
            return None
        return self._add_record(file_id, f"{file_id}.jsonl", "batch_output", keep_s, key).id

    def write_batch(self, record: BatchRecord) -> None:
        """Writes the record; one that has ended needs its input no more."""
        _write(self._batches / f"{record.id}.json", record)
        if not record.is_open:
            self.input(record).unlink(missing_ok=True)
            self._cancel_mark(record.id).unlink(missing_ok=True)

    def clean(self) -> None:
        """Removes what is too old, and what no record is about."""
        now_s = time.time()
        for record in _records(self._files, FileRecord):
            if record.expires_at <= now_s:
                self._forget_file(record.id)
        kept: set[str] = {"lock"}
        for record in _records(self._batches, BatchRecord):
            if record.is_open:
                kept |= {record.id, *_result_ids(record)}
            elif record.created_at + KEEP_S <= now_s:
                self._forget_batch(record.id)
        kept.update(_ids(self._files), _ids(self._batches))
        for folder in (self._files, self._batches):
            for path, stat in _scan(folder):
                if path.stem not in kept and stat.st_mtime + ORPHAN_S <= now_s:
                    path.unlink(missing_ok=True)


def _new_hex() -> str:
    """Returns the unique part of an id; ids sort by time."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


def _result_ids(record: BatchRecord) -> tuple[str, str]:
    """Returns the ids of output and error file: they follow from the batch's, so a crash makes no second ones."""
    name = record.id.removeprefix("batch_")
    return f"file-{name}-output", f"file-{name}-error"


def _ids(folder: Path) -> list[str]:
    """Returns the ids of the records in `folder`, the newest first."""
    names = (name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208
    return sorted(filter(_ID.match, names), reverse=True)


def _records(folder: Path, kind: type[R]) -> Iterator[R]:
    """Yields the records in `folder` that can be read, the newest first."""
    records = (_read(folder, name, kind) for name in _ids(folder))
    return (record for record in records if record is not None)


def _read(folder: Path, name: str, kind: type[R]) -> R | None:
    """Returns the record, `None` if there is none that can be read."""
    if not _ID.match(name):
        return None
    path = folder / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind) if _is_plain(path) else None
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _is_plain(path: Path) -> bool:
    """True for a file that is here itself: a link would serve, or overwrite, what is anywhere on this machine."""
    try:
        return S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _write(path: Path, record: msgspec.Struct) -> None:
    """Replaces the record by a whole one."""
    temporary = path.with_name(f"{secrets.token_hex(12)}.tmp")
    try:
        temporary.write_bytes(msgspec.json.encode(record))
        _sync(temporary)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _scan(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield path, path.lstat()


def _not_found(kind: str, name: str) -> RequestError:
    return not_found(f"there is no {kind} {quoted(name)}", f"{kind}_not_found")
