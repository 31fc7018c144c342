"""The file in memory that holds a run's weights as kernels read them: one scheduler writes it, all map it.

The launcher owns the file. It begins with a header, whose seal is written last; the values of the parameters follow,
then their list. The writer holds the lock exclusively; readers share it until their process ends, so memory that is
read is never freed.
"""

import fcntl
import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch

from kernels.cpu.huge_memory import HUGE_PAGE, make_huge
from kernels.cpu.huge_pages import ALIGNMENT, Chunk, allocate_from
from kernels.formats.registry import FORMATS
from kernels.formats.weight_format import Weight
from messages.errors import BootError, errors_as
from scheduler_proc.computing.backends.backend import SharedWeights
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.report import Report

HEADER = struct.Struct("<32s32sQQQ")
"""Seal, identity, offset and size of the list, size of the file. The seal is a digest of the others and the list."""

LOCK = struct.Struct("hhqqi4x")
"""The kernel's `struct flock`. These locks belong to an open file, and are downgraded atomically."""

WAIT_S = 0.05
SLICE_BYTES = 16 << 20
"""The amount of memory requested in one call."""

log = logging.getLogger("sluice.weights")


class KeptWeight(msgspec.Struct, frozen=True, array_like=True):
    """A weight of the list; dtype, shape and offset in the file are those of its stored tensor."""

    name: str
    format: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    numbers: tuple[int, ...]


class WeightMemory(SharedWeights):
    """The file at `path`, for a scheduler with this `identity`. Raises `BootError` if it cannot be opened."""

    def __init__(self, path: Path, identity: bytes):
        self._identity = identity
        with errors_as(BootError, path, "; --no-share-weights does without it"):
            # Closed with the process, or by `load` if nothing is mapped: the lock is held while it is open.
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def load(self, make: Callable[[], Weights], report: Report, count_bytes: Callable[[], int] = lambda: 0) -> Weights:
        """Returns the weights in the file; if it has none, writes the weights that `make` returns first.

        If `count_bytes` knows what suffices for everything that `make` allocates, that is allocated in the file, and
        nothing is copied. Waits as long as another scheduler is writing. If other schedulers use weights of another
        identity, returns the weights of `make`, not shared. Raises `BootError` if there is not enough memory.
        """
        while (weights := self.find()) is None:
            if self._lock(fcntl.F_WRLCK):
                self._write(make, count_bytes())
            elif self._holds_other():
                log.warning("the weights that other schedulers share are of other flags or files: not shared")
                os.close(self._descriptor)
                return make()
            else:
                report("waiting for the weights, which another scheduler loads", None)
                time.sleep(WAIT_S)
        return weights

    def find(self) -> Weights | None:
        """Returns the weights in the file; None if it has none of this identity, or if they are being written."""
        if not self._lock(fcntl.F_RDLCK):
            return None
        seal, identity, list_begin, num_list_bytes, num_bytes = self._read_header()
        text = os.pread(self._descriptor, num_list_bytes, list_begin) if identity == self._identity else b""
        if seal != _seal(self._identity, text, num_bytes) or num_bytes != os.fstat(self._descriptor).st_size:
            self._lock(fcntl.F_UNLCK)
            return None
        chunk = Chunk(num_bytes, self._descriptor, is_read_only=True)
        parameters = msgspec.json.decode(text, type=list[KeptWeight])
        return {one.name: _restore(one, chunk) for one in parameters}

    def free(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _lock(self, kind: int) -> bool:
        """Returns True if this open file got a lock of that kind; otherwise it keeps the lock it had."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, LOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            return False
        return True

    def _read_header(self) -> tuple[bytes, bytes, int, int, int]:
        return HEADER.unpack(os.pread(self._descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0"))

    def _holds_other(self) -> bool:
        """True if others use weights of another identity: they keep the lock, so nothing can be written."""
        seal, identity, *_ = self._read_header()
        return seal != bytes(len(seal)) and identity != self._identity

    def _write(self, make: Callable[[], Weights], num_bytes: int) -> None:
        """Writes the weights into the file, one by one, so that there is never a second copy of many."""
        if num_bytes:
            chunk = self._make_room(num_bytes)
            with allocate_from(chunk):
                weights = make()
        else:
            weights = make()
            chunk = self._make_room(sum(weight.stored.nbytes + ALIGNMENT for weight in weights.values()))
        parameters = [_place(name, weights.pop(name), chunk) for name in list(weights)]
        text = msgspec.json.encode(parameters)
        list_begin = chunk.num_taken_bytes
        num_bytes = -(-(list_begin + len(text)) // HUGE_PAGE) * HUGE_PAGE
        os.ftruncate(self._descriptor, num_bytes)
        os.pwrite(self._descriptor, text, list_begin)
        seal = _seal(self._identity, text, num_bytes)
        os.pwrite(self._descriptor, HEADER.pack(seal, self._identity, list_begin, len(text), num_bytes), 0)
        log.info("weights are kept in memory for all schedulers: %.2f GiB", num_bytes / 2**30)

    def _make_room(self, num_bytes: int) -> Chunk:
        """Returns the empty file, with room for `num_bytes`."""
        num_bytes += HEADER.size + ALIGNMENT
        with errors_as(BootError, "the weights in memory", "; --no-share-weights does without it"):
            # Its old content has another identity or is unfinished; memory that the launcher prepared is kept.
            os.pwrite(self._descriptor, bytes(HEADER.size), 0)
            os.ftruncate(self._descriptor, num_bytes)
            chunk = Chunk(num_bytes, self._descriptor)
        header = chunk.take((HEADER.size,), torch.uint8)
        assert header is not None
        # The host of a virtual machine has to find the memory too, which takes longer than filling it.
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            slices = range(header.data_ptr(), header.data_ptr() + num_bytes, SLICE_BYTES)
            list(threads.map(lambda begin: make_huge(begin, min(SLICE_BYTES, slices.stop - begin)), slices))
        return chunk


def _seal(identity: bytes, text: bytes, num_bytes: int) -> bytes:
    return hashlib.sha256(identity + num_bytes.to_bytes(8, "little") + text).digest()


def _place(name: str, weight: Weight, chunk: Chunk) -> KeptWeight:
    """Copies the weight into the chunk unless it is already there; returns its entry of the list."""
    tensor = weight.stored
    offset = chunk.find(tensor)
    if offset is None:
        offset, room = chunk.num_taken_bytes, chunk.take(tensor.shape, tensor.dtype)
        assert room is not None, "the file is too small for the weights"
        room.copy_(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return KeptWeight(name, weight.format.name, dtype, tuple(tensor.shape), offset, weight.numbers)


def _restore(kept: KeptWeight, chunk: Chunk) -> Weight:
    tensor = chunk.at(kept.offset, kept.shape, getattr(torch, kept.dtype))
    assert tensor is not None, "the file is too small for its list"
    return FORMATS[kept.format].restore(tensor, kept.numbers)
