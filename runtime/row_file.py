"""The file in memory with the encodings of images of one engine: encoders write rows, its scheduler reads them.

A header, a note per row (`messages/ring/encodings.py`), then the rows. The launcher owns the file, so that it outlives
both. Only the scheduler writes notes.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from xxhash import xxh3_64

from messages.ring.encodings import ROW_NOTE

HEADER = struct.Struct("<QQ")
NOTES = 64
ALIGNMENT = 4096


class RowFile:
    """The file at `path`. `notes` and `rows` are its memory; a row has `row_bytes`.

    A scheduler gives the sizes; a file of other sizes is emptied first. An encoder takes those of the file. Raises
    `OSError` if there is no file, and `ValueError` for an encoder before the scheduler.
    """

    def __init__(self, path: Path, num_rows: int = 0, row_bytes: int = 0):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = HEADER.unpack(os.pread(descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0"))
            self.num_rows, self.row_bytes = (num_rows, row_bytes) if num_rows else found
            if not self.num_rows:
                raise ValueError(f"{path} has no rows yet")
            self._begin = -(-(NOTES + self.num_rows * ROW_NOTE.size) // ALIGNMENT) * ALIGNMENT
            num_bytes = self._begin + self.num_rows * self.row_bytes
            if found != (self.num_rows, self.row_bytes):
                os.ftruncate(descriptor, 0)
                os.ftruncate(descriptor, num_bytes)
                os.pwrite(descriptor, HEADER.pack(self.num_rows, self.row_bytes), 0)
            self._memory = memoryview(mmap.mmap(descriptor, num_bytes))
        finally:
            os.close(descriptor)
        self.notes = self._memory[NOTES : NOTES + self.num_rows * ROW_NOTE.size]
        self.rows = self._memory[self._begin :]

    def write(self, ask: int, places: Iterable[int], rows: memoryview) -> int | None:
        """Writes rows to these places, unless one of them belongs to another ask now; then returns `None`.

        Returns the checksum of what it has written.
        """
        size = self.row_bytes
        for index, place in enumerate(places):
            if ROW_NOTE.unpack_from(self.notes, place * ROW_NOTE.size)[2] != ask:
                return None
            self.rows[place * size : (place + 1) * size] = rows[index * size : (index + 1) * size]
        return xxh3_64(rows).intdigest()

    def checksum(self, places: Iterable[int]) -> int:
        """Returns the checksum of the rows at these places, in this order."""
        checksum, size = xxh3_64(), self.row_bytes
        for place in places:
            checksum.update(self.rows[place * size : (place + 1) * size])
        return checksum.intdigest()
