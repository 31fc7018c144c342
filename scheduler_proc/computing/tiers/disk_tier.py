"""The tier on disk: two files in a directory that outlive the server, and that one scheduler has at a time.

`pages` has the slots, `index` a record of each: its page's digest, and a number that grows with each write. The index
decides only where to look, because each slot records what it holds: after a crash or damage both can be used as they
are. Files of another identity or page size are emptied.
"""

import fcntl
import logging
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from messages.errors import BootError, errors_as
from scheduler_proc.computing.tiers.slot_file import DIGEST_BYTES, SlotFile
from scheduler_proc.computing.tiers.tier import Tier

HEADER = struct.Struct("<8s32sQ")
MAGIC = b"sluiceK3"
RECORD = struct.Struct(f"<{DIGEST_BYTES}sQ")
EMPTY = bytes(DIGEST_BYTES)

log = logging.getLogger("sluice.kv_tiers")


class DiskTier(Tier):
    """The files in `folder`, which take up to `max_bytes`.

    Raises `BootError` if another server uses them, or if the directory cannot be written.
    """

    def __init__(self, folder: Path, max_bytes: int, identity: bytes, page_bytes: int):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._index, pages = (_open(folder / name) for name in ("index", "pages"))
            fcntl.flock(self._index, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BootError(f"another server has {folder}; give each a directory of its own") from None
        except OSError as error:
            raise BootError(f"{folder}: {error.strerror}") from None
        file = SlotFile(pages, page_bytes)
        super().__init__("disk", file, max_bytes // (file.slot_bytes + RECORD.size))
        header = HEADER.pack(MAGIC, identity, file.slot_bytes)
        with errors_as(BootError, folder):
            self._recover(folder, pages, header)

    def _recover(self, folder: Path, pages: int, header: bytes) -> None:
        found = os.pread(self._index, HEADER.size, 0)
        if found != header:
            if found:
                log.warning("%s holds pages of another model, format or version: they are dropped", folder)
            for descriptor in (self._index, pages):
                os.ftruncate(descriptor, 0)
            os.pwrite(self._index, header, 0)
        for descriptor, size in ((pages, self.file.slot_bytes), (self._index, RECORD.size)):
            most = self.num_slots * size + HEADER.size * (descriptor == self._index)
            if os.fstat(descriptor).st_size > most:
                os.ftruncate(descriptor, most)
        data = os.pread(self._index, self.num_slots * RECORD.size, HEADER.size)
        records = list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
        self._free = [slot for slot, (digest, _) in enumerate(records) if digest == EMPTY]
        self._num_taken = len(records)
        self._stamp = 0
        for stamp, slot, digest in sorted((stamp, slot, digest) for slot, (digest, stamp) in enumerate(records)):
            if digest in self._slots:
                self._free.append(slot)
            elif digest != EMPTY:
                self._slots[digest] = slot
                self._stamp = stamp
        if self._slots:
            log.info("%s holds %d pages", folder, len(self._slots))

    def write(self, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        super().write(slot, digests, pages)
        records = [RECORD.pack(digest, stamp) for stamp, digest in enumerate(digests, self._stamp + 1)]
        self._stamp += len(digests)
        os.pwrite(self._index, b"".join(records), HEADER.size + slot * RECORD.size)

    def clear(self) -> None:
        super().clear()
        os.ftruncate(self._index, HEADER.size)

    def close(self) -> None:
        """Also saves the order of use."""
        records = bytearray(self._num_taken * RECORD.size)
        for stamp, (digest, slot) in enumerate(self._slots.items(), start=1):
            RECORD.pack_into(records, slot * RECORD.size, digest, stamp)
        with suppress(OSError):
            os.pwrite(self._index, records, HEADER.size)
        os.close(self._index)
        super().close()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
