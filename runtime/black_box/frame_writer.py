"""Writes a file of frames through a memory map, so that no frame is lost when the process is killed."""

import mmap
import os
import time
from collections import deque
from pathlib import Path

from messages import frame_files
from messages.frames import HEADER
from messages.schema import SCHEMA_VERSION

NUM_MARKS = 16
"""Number of record positions that are remembered. A full ring drops all records before one of them."""

LARGEST_PARTS = 4
"""A frame larger than 1/LARGEST_PARTS of the file is cut: only its header is kept."""

NAME_BYTES = 47


class FrameWriter:
    """A file of `capacity` bytes of records. Raises `OSError` if the disk has no room for it.

    All blocks are allocated at once, because a memory map on a full disk would kill the process later.
    """

    def __init__(self, path: Path, process: str, capacity: int):
        self.path = path
        self._capacity = capacity = frame_files.padded(capacity)
        self._largest = capacity // LARGEST_PARTS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, frame_files.DATA + capacity)
            self._map = mmap.mmap(descriptor, frame_files.DATA + capacity)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._head = 0
        self._end = capacity
        """The position up to which records can be written without dropping old ones."""
        self._marks: deque[int] = deque()
        self._next_mark = 0
        name = process.encode()[:NAME_BYTES]
        stamps = time.time_ns(), time.monotonic_ns()
        frame_files.FILE_HEADER.pack_into(
            self._map, 0, frame_files.MAGIC, frame_files.FORMAT, os.getpid(), SCHEMA_VERSION, *stamps, capacity, name
        )

    def add(self, flags: int, receiver: bytes, frame: bytes) -> None:
        """Adds a record. If the file is full, overwrites the oldest ones."""
        size = len(frame)
        if size > self._largest:
            self.add(flags | frame_files.IS_CUT, receiver, frame[: HEADER.size])
            return
        head, frames = self._head, self._map
        num_bytes = frame_files.RECORD.size + len(receiver) + size
        num_bytes += -num_bytes % frame_files.ALIGNMENT
        at = head % self._capacity
        skipped = self._capacity - at if at + num_bytes > self._capacity else 0
        self._head += skipped + num_bytes
        if self._head > self._end:
            self._free()
        if skipped:
            frames[frame_files.DATA + at : frame_files.DATA + at + len(frame_files.SKIP)] = frame_files.SKIP
            at = 0
        if head >= self._next_mark:
            self._marks.append(head)
            self._next_mark = head + self._capacity // NUM_MARKS
        at += frame_files.DATA
        frame_files.RECORD.pack_into(frames, at, size, flags, len(receiver), 0, time.monotonic_ns())
        at += frame_files.RECORD.size
        middle = at + len(receiver)
        frames[at:middle] = receiver
        frames[middle : middle + size] = frame
        frame_files.POSITION.pack_into(frames, frame_files.HEAD, self._head)

    def has_room(self, receiver: bytes, frame: bytes) -> bool:
        """True if `add` would overwrite no older record."""
        size = len(frame) if len(frame) <= self._largest else HEADER.size
        return self._head + frame_files.padded(frame_files.RECORD.size + len(receiver) + size) <= self._capacity

    def _free(self) -> None:
        """Drops the oldest records until everything up to the new head fits."""
        tail = self._end - self._capacity
        while tail + self._capacity < self._head:
            tail = self._marks.popleft()
        frame_files.POSITION.pack_into(self._map, frame_files.TAIL, tail)
        self._end = tail + self._capacity

    def close(self) -> None:
        """Closes the file and truncates it after the last record, unless it has wrapped around."""
        self._map.close()
        if self._head < self._capacity:
            os.truncate(self.path, frame_files.DATA + self._head)
