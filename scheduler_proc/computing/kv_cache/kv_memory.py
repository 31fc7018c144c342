"""The file in memory that holds a run's KV cache, so that a scheduler finds the pages of the one before it.

The launcher owns the file and one scheduler after another maps it: a header, notes about the pages, then K and V.
"""

import fcntl
import os
import struct
import weakref
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.huge_memory import HUGE_PAGE
from kernels.cpu.huge_pages import Chunk
from messages.errors import BootError, errors_as

HEADER = struct.Struct("<32sQ")
ENGINE, ENGINE_PLACE = struct.Struct("<Q"), 64
"""The number of the engine that filled the pages together, and its offset."""

NOTES = 4096
"""The offset of the notes."""

NOTE_BYTES = 80
"""Per page, in addition to 4 for each of its tokens."""

WINDOW_NOTE_BYTES = 16
"""Per window page."""

STATE_NOTE_BYTES = 24
"""Per state slot."""

MASK = 2**64 - 1

Kind = Literal["page", "window page", "state"]


class KVMemory:
    """The file at `path`, for a cache that only a scheduler with the same `identity` can continue to use.

    `num_pages`: the pages of the cache in it, 0 if there is none or it has another identity; its memory is then freed.
    Raises `BootError` while another scheduler has the file or any of its memory.
    """

    def __init__(self, path: Path, identity: bytes):
        self._identity = identity
        with errors_as(BootError, path, "; --no-keep-kv-cache does without it"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        header = os.pread(self._descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0")
        found, num_pages = HEADER.unpack(header)
        self.num_pages: int = num_pages if found == identity else 0
        self.lost_pages: Collection[int] = ()
        """Pages of which another rank has lost its part."""
        if not self.num_pages:
            self.clear()

    def clear(self) -> None:
        """Frees what a predecessor has left."""
        os.ftruncate(self._descriptor, 0)
        self.num_pages = 0

    @property
    def engine(self) -> int:
        """The number of the last engine of several ranks that had this memory, 0 if none had."""
        return ENGINE.unpack(os.pread(self._descriptor, ENGINE.size, ENGINE_PLACE).ljust(ENGINE.size, b"\0"))[0]

    @engine.setter
    def engine(self, number: int) -> None:
        os.pwrite(self._descriptor, ENGINE.pack(number), ENGINE_PLACE)

    @property
    def num_resident_bytes(self) -> int:
        """The bytes of the file that are in memory."""
        return os.fstat(self._descriptor).st_blocks * 512

    def map(
        self, num_pages: int, page_size: int, num_bytes: int, num_window_pages: int = 0, num_states: int = 0
    ) -> None:
        """Maps memory for a cache of `num_bytes` bytes: pages, window pages and state slots. Raises `OSError`."""
        num_entry_bytes = num_pages * (NOTE_BYTES + 4 * page_size)
        num_entry_bytes += num_window_pages * WINDOW_NOTE_BYTES + num_states * STATE_NOTE_BYTES
        num_bytes += NOTES + num_entry_bytes + HUGE_PAGE
        os.ftruncate(self._descriptor, num_bytes)
        self._chunk = Chunk(num_bytes, self._descriptor)
        self._counts: dict[Kind, int] = {"page": num_pages, "window page": num_window_pages, "state": num_states}
        self._words: dict[Kind, list[np.ndarray]] = {kind: [] for kind in self._counts}
        self.notes = self._take((NOTES + num_entry_bytes,), torch.uint8).numpy().data[NOTES:]
        self.num_pages = num_pages
        os.pwrite(self._descriptor, HEADER.pack(self._identity, num_pages), 0)

    def take(self, shape: Sequence[int], dtype: torch.dtype, kind: Kind = "page") -> Tensor:
        """Returns one of the cache's tensors, [L, S, …], which are taken in the same order by each scheduler."""
        tensor = self._take(shape, dtype)
        self._words[kind].append(_as_words(tensor, self._counts[kind]))
        return tensor

    def _take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = self._chunk.take(shape, dtype)
        assert tensor is not None, "there is too little memory for the cache"
        return tensor

    def checksum(self, page: int, *, is_window: bool = False) -> int:
        """Returns a checksum of a page or window page: over 64-bit words if they divide its size, else over bytes."""
        return self._sum("window page" if is_window else "page", page)

    def checksum_state(self, slot: int) -> int:
        """Returns the same of a recurrent state."""
        return self._sum("state", slot)

    def _sum(self, kind: Kind, number: int) -> int:
        total = 0
        for words in self._words[kind]:
            total = (total * 31 + int(np.add.reduce(words[:, number], axis=None, dtype=np.uint64))) & MASK
        return total

    def damage(self, page: int) -> None:
        """Corrupts the page's K, for injected faults."""
        for words in self._words["page"][:1]:
            np.invert(words[:, page], out=words[:, page])


def _as_words(tensor: Tensor, num_pages: int) -> "np.ndarray":
    """Returns a tensor [L, S, …] as numbers [L, pages, words]."""
    values = tensor.reshape(tensor.shape[0], num_pages, -1).view(torch.uint8).numpy()
    return values.view(np.uint64) if values.shape[-1] % 8 == 0 else values
