"""Pages in a file of slots of one size. Each slot says which page it holds, so a torn or stale one is recognised."""

import errno
import os
import struct
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

DIGEST_BYTES = 16
"""Of the name of a page, which whoever keeps it has chosen."""

HEADER = struct.Struct(f"<{DIGEST_BYTES}sQ")
"""The page's digest, and the checksum of the page, which begins with a number from the digest."""


class SlotFile:
    """Slots for pages of `page_bytes` in an open file, which may be one in memory.

    It may be used from several threads. A slot that is written while it is read holds no page for the reader.
    """

    def __init__(self, descriptor: int, page_bytes: int):
        self._descriptor = descriptor
        self.slot_bytes = HEADER.size + page_bytes

    def write(self, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """The slots from this one on hold the pages, at most 512. Raises `OSError`; then none is known to be there."""
        parts = [part for digest, page in zip(digests, pages, strict=True) for part in (_header(digest, page), page)]
        if os.pwritev(self._descriptor, parts, slot * self.slot_bytes) < len(pages) * self.slot_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, slot: int, digest: bytes, page: memoryview) -> None:
        """Fills `page` with that of this name. Raises `OSError`, also where the slot does not hold it."""
        header = bytearray(HEADER.size)
        num_read = os.preadv(self._descriptor, [header, page], slot * self.slot_bytes)
        if num_read < self.slot_bytes or header != _header(digest, page):
            raise OSError(errno.EBADMSG, "its checksum is wrong")

    def close(self) -> None:
        os.close(self._descriptor)


def _header(digest: bytes, page: memoryview) -> bytes:
    return HEADER.pack(digest, xxh3_64_intdigest(page, xxh3_64_intdigest(digest)))
