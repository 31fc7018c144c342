"""Pages in a file of slots of one size. Each slot records which page it holds, so a torn or stale one is recognised.

Where page, file system and memory allow it, nothing goes through the kernel's page cache (O_DIRECT): hardly a page is
read twice, and a copy there costs the steps more than the write does, and other programs their memory.
"""

import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

DIGEST_BYTES = 16
"""The size of a page's name, which the caller chooses."""

HEADER = struct.Struct(f"<{DIGEST_BYTES}sQ")
"""The page's digest, and the checksum of the page, which begins with a number from the digest."""

SECTOR_BYTES = 512
"""Memory for direct reads and writes begins and ends at a multiple of this."""

MAX_AT_ONCE = 512
"""Slots: each takes two of the 1,024 parts of a system call."""

BLOCK_BYTES = 4096
"""Slots that are written directly begin at a multiple of this in the file."""


class SlotFile:
    """Slots for pages of `page_bytes` in an open file, which may be one in memory.

    It may be used from several threads. A slot that is written while it is read holds no page for the reader.
    """

    def __init__(self, descriptor: int, page_bytes: int):
        self._descriptor = descriptor
        has_sectors = page_bytes % SECTOR_BYTES == 0
        self.is_direct = has_sectors and _set_direct(descriptor, True)
        self._head_bytes = BLOCK_BYTES - page_bytes % BLOCK_BYTES if has_sectors else HEADER.size
        """The bytes before each page: its header and padding."""
        self.slot_bytes = self._head_bytes + page_bytes
        self._heads = _Heads()

    def write(self, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Writes at most `MAX_AT_ONCE` pages into the slots from this one on.

        Raises `OSError`; then none of them may be relied on.
        """
        heads, size = self._heads.take(len(pages) * self._head_bytes), self._head_bytes
        parts: list[memoryview] = []
        for index, (digest, page) in enumerate(zip(digests, pages, strict=True)):
            HEADER.pack_into(heads, index * size, digest, _checksum(digest, page))
            parts += heads[index * size : (index + 1) * size], page
        if self._transfer(os.pwritev, parts, slot) < len(pages) * self.slot_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> int:
        """Reads at most `MAX_AT_ONCE` pages from the slots from this one on; returns how many have the given names.

        These are the first ones; the content of the others is undefined. Raises `OSError`.
        """
        heads, size = self._heads.take(len(pages) * self._head_bytes), self._head_bytes
        parts: list[memoryview] = []
        for index, page in enumerate(pages):
            parts += heads[index * size : (index + 1) * size], page
        num_read = self._transfer(os.preadv, parts, slot) // self.slot_bytes
        for index, (digest, page) in enumerate(zip(digests[:num_read], pages, strict=False)):
            if HEADER.unpack_from(heads, index * size) != (digest, _checksum(digest, page)):
                return index
        return num_read

    def close(self) -> None:
        os.close(self._descriptor)

    def _transfer(self, call: Callable[[int, list[memoryview], int], int], parts: list[memoryview], slot: int) -> int:
        """Returns the number of bytes read or written; after the first failed direct call, no call is direct."""
        try:
            return call(self._descriptor, parts, slot * self.slot_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.is_direct:
                raise
        self.is_direct = _set_direct(self._descriptor, False)
        return call(self._descriptor, parts, slot * self.slot_bytes)


class _Heads(threading.local):
    """Memory per thread, aligned to a page."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, BLOCK_BYTES)

    def take(self, num_bytes: int) -> memoryview:
        """Returns `num_bytes` of it, valid until the next call in this thread."""
        if num_bytes > len(self._memory):
            self._memory = mmap.mmap(-1, num_bytes)
        return memoryview(self._memory)[:num_bytes]


def _checksum(digest: bytes, page: memoryview) -> int:
    return xxh3_64_intdigest(page, xxh3_64_intdigest(digest))


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Returns True if the file now uses direct I/O; not every file system supports it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))
    except OSError:
        return False
    return is_direct
