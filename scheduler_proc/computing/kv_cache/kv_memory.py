"""The file in memory that holds a run's KV cache, so that a scheduler finds the pages of the one before it.

The launcher owns the file and one scheduler after another maps it: a header, notes about the pages, then K and V.
"""

import fcntl
import os
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.huge_memory import HUGE_PAGE
from kernels.cpu.huge_pages import Chunk
from messages.errors import BootError

HEADER = struct.Struct("<32sQ")
NOTES = 4096
"""The offset of the notes."""

NOTE_BYTES = 80
"""Per page, in addition to 4 for each of its tokens."""

WINDOW_NOTE_BYTES = 16
"""Per window page."""

MASK = 2**64 - 1


class KVMemory:
    """The file at `path`, for a cache that only a scheduler with the same `identity` can continue to use.

    `num_pages`: the pages of the cache in it, 0 if there is none or it has another identity; its memory is then freed.
    Raises `BootError` while another scheduler has the file or any of its memory.
    """

    def __init__(self, path: Path, identity: bytes):
        self._identity = identity
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BootError(f"{path}: {error.strerror}; --no-keep-kv-cache does without it") from None
        header = os.pread(self._descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0")
        found, num_pages = HEADER.unpack(header)
        self.num_pages: int = num_pages if found == identity else 0
        if not self.num_pages:
            os.ftruncate(self._descriptor, 0)

    def map(self, num_pages: int, page_size: int, num_bytes: int, num_window_pages: int = 0) -> None:
        """Maps memory for a cache of `num_pages` pages, window pages and `num_bytes` bytes. Raises `OSError`."""
        num_note_bytes = num_pages * (NOTE_BYTES + 4 * page_size) + num_window_pages * WINDOW_NOTE_BYTES
        num_bytes += NOTES + num_note_bytes + HUGE_PAGE
        os.ftruncate(self._descriptor, num_bytes)
        self._chunk = Chunk(num_bytes, self._descriptor)
        self._words: dict[bool, list[np.ndarray]] = {False: [], True: []}
        self.notes = self._take((NOTES + num_note_bytes,), torch.uint8).numpy().data[NOTES:]
        self.num_pages = num_pages
        os.pwrite(self._descriptor, HEADER.pack(self._identity, num_pages), 0)

    def take(self, shape: Sequence[int], dtype: torch.dtype, num_window_pages: int = 0) -> Tensor:
        """Returns one of the cache's tensors, [L, S, …], which are taken in the same order by each scheduler.

        It has the slots of the window pages, if their number is given, otherwise those of the pages.
        """
        tensor = self._take(shape, dtype)
        self._words[num_window_pages > 0].append(_as_words(tensor, num_window_pages or self.num_pages))
        return tensor

    def _take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = self._chunk.take(shape, dtype)
        assert tensor is not None, "there is too little memory for the cache"
        return tensor

    def checksum(self, page: int, *, is_window: bool = False) -> int:
        """Returns a checksum of a page or window page: over 64-bit words if they divide its size, else over bytes."""
        total = 0
        for words in self._words[is_window]:
            total = (total * 31 + int(np.add.reduce(words[:, page], axis=None, dtype=np.uint64))) & MASK
        return total

    def damage(self, page: int) -> None:
        """Corrupts the page's K, for injected faults."""
        for words in self._words[False][:1]:
            np.invert(words[:, page], out=words[:, page])


def _as_words(tensor: Tensor, num_pages: int) -> "np.ndarray":
    """Returns a tensor [L, S, …] as numbers [L, pages, words]."""
    values = tensor.reshape(tensor.shape[0], num_pages, -1).view(torch.uint8).numpy()
    return values.view(np.uint64) if values.shape[-1] % 8 == 0 else values
