"""The keys of the file, as a frontend knows them now."""

import functools
import hashlib
import logging
import time
from pathlib import Path

from extras.keys.config import KeysConfig
from extras.keys.key_file import KeyEntry, read_key_file
from frontend.requests.client import Client
from messages.config.server import Config
from messages.errors import BootError, UsageError, errors_as

CHECK_S = 1.0
"""Time after which a change of the file takes effect."""

FRESH_NS = 2 * 10**9
"""A file that has changed this recently may change again within the resolution of its time."""

log = logging.getLogger("sluice.frontend")


class KeyTable:
    """Finds the holders of keys. Raises `UsageError` for a bad file at first; later, the table before it stays."""

    def __init__(self, path: Path):
        self._path = path
        self._checked_s = time.monotonic()
        self._version = self._read_version()
        self._by_digest: dict[bytes, Client] = {}
        self._entries: dict[str, KeyEntry] = {}
        self._error = ""
        self._accept(read_key_file(path))

    @property
    def entries(self) -> dict[str, KeyEntry]:
        """The keys of the file by name, not older than `CHECK_S`."""
        self.follow()
        return self._entries

    def find(self, key: bytes) -> Client | None:
        """Returns the holder of `key`. Only its digest is looked up, so the time reveals nothing about other keys."""
        self.follow()
        return self._by_digest.get(hashlib.sha256(key).digest())

    def find_by_name(self, name: str) -> Client | None:
        """Returns the holder of the key with this name."""
        entry = self.entries.get(name)
        return None if entry is None else self._by_digest[entry.digest]

    def follow(self) -> None:
        """Reads the file again if it has changed, at most once in `CHECK_S`."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        version = self._read_version()
        if version is not None and version == self._version:
            return
        try:
            entries = read_key_file(self._path)
        except UsageError as error:
            if str(error) != self._error:
                log.error("--api-keys: %s; the previous %d keys stay", error, len(self._entries))
            self._error = str(error)
            return
        self._version = version
        if entries != self._entries or self._error:
            self._error = ""
            self._accept(entries)
            log.info("--api-keys: %s has changed: %d keys", self._path, len(entries))

    def _accept(self, entries: dict[str, KeyEntry]) -> None:
        self._entries = entries
        self._by_digest = {
            entry.digest: Client(
                name=name,
                key=name,
                share=entry.share,
                priority=entry.priority,
                models=entry.models,
                is_admin=entry.admin,
                sees_all=entry.admin,
            )
            for name, entry in entries.items()
        }

    def _read_version(self) -> tuple[int, int, int] | None:
        """Returns what changes with the content; `None` if that may change unnoticed, or if there is no file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        if time.time_ns() - status.st_mtime_ns < FRESH_NS:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


@functools.cache
def open_table(path: Path) -> KeyTable:
    """Returns the table of this process. Raises `BootError`."""
    with errors_as(BootError, "--api-keys", of=UsageError):
        return KeyTable(path)


def find_table(config: Config) -> KeyTable | None:
    """Returns the keys of the file, `None` if there is no file. Raises `BootError`."""
    path = KeysConfig.of(config).key_file
    return None if path is None else open_table(path)
