"""Writes a file of frames through a memory map, so that the kernel has each frame when the process is killed."""

import mmap
import os
import time
from collections import deque
from pathlib import Path

from messages.frame_files import (
    ALIGNMENT,
    DATA,
    FILE_HEADER,
    FORMAT,
    HEAD,
    IS_CUT,
    MAGIC,
    POSITION,
    RECORD,
    SKIP,
    TAIL,
    padded,
)
from messages.frames import HEADER
from messages.schema import SCHEMA_VERSION

NUM_MARKS = 16
"""About so many records have their positions noted: when the ring is full, those before one of them are dropped."""

LARGEST_PARTS = 4
"""A frame of more than this part of a file is cut: only its number is kept."""

NAME_BYTES = 47


class FrameWriter:
    """One file of `capacity` bytes of records. Raises `OSError` where there is no room for it on the disk.

    All blocks are allocated at once: a map that meets a full disk later would kill the process.
    """

    def __init__(self, path: Path, process: str, capacity: int):
        self.path = path
        self._capacity = capacity = padded(capacity)
        self._largest = capacity // LARGEST_PARTS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, DATA + capacity)
            self._map = mmap.mmap(descriptor, DATA + capacity)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._head = 0
        self._end = capacity
        """The position that the next record may go up to while the oldest ones stay."""
        self._marks: deque[int] = deque()
        self._next_mark = 0
        name = process.encode()[:NAME_BYTES]
        stamps = time.time_ns(), time.monotonic_ns()
        FILE_HEADER.pack_into(self._map, 0, MAGIC, FORMAT, os.getpid(), SCHEMA_VERSION, *stamps, capacity, name)

    def add(self, flags: int, receiver: bytes, frame: bytes) -> None:
        """Adds a record, in the place of the oldest ones where the file is full."""
        size = len(frame)
        if size > self._largest:
            self.add(flags | IS_CUT, receiver, frame[: HEADER.size])
            return
        head, frames = self._head, self._map
        num_bytes = RECORD.size + len(receiver) + size
        num_bytes += -num_bytes % ALIGNMENT
        at = head % self._capacity
        skipped = self._capacity - at if at + num_bytes > self._capacity else 0
        self._head += skipped + num_bytes
        if self._head > self._end:
            self._free()
        if skipped:
            frames[DATA + at : DATA + at + len(SKIP)] = SKIP
            at = 0
        if head >= self._next_mark:
            self._marks.append(head)
            self._next_mark = head + self._capacity // NUM_MARKS
        at += DATA
        RECORD.pack_into(frames, at, size, flags, len(receiver), 0, time.monotonic_ns())
        at += RECORD.size
        middle = at + len(receiver)
        frames[at:middle] = receiver
        frames[middle : middle + size] = frame
        POSITION.pack_into(frames, HEAD, self._head)

    def has_room(self, receiver: bytes, frame: bytes) -> bool:
        """Tells whether `add` takes the place of no older record."""
        size = len(frame) if len(frame) <= self._largest else HEADER.size
        return self._head + padded(RECORD.size + len(receiver) + size) <= self._capacity

    def _free(self) -> None:
        """Drops the oldest records, so that what is in use up to the new head fits."""
        tail = self._end - self._capacity
        while tail + self._capacity < self._head:
            tail = self._marks.popleft()
        POSITION.pack_into(self._map, TAIL, tail)
        self._end = tail + self._capacity

    def close(self) -> None:
        """Ends the file behind the last record, where it has not come round."""
        self._map.close()
        if self._head < self._capacity:
            os.truncate(self.path, DATA + self._head)
