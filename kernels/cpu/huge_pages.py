"""Memory for what is read from end to end again and again: in huge pages, where Linux has them.

A core that streams weights or K and V meets a new page every 4 KB otherwise, and each costs it a walk through the page
tables; in a virtual machine, through two.
"""

import contextlib
import ctypes
import math
import mmap
import os
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

HUGE_PAGE, CHUNK_BYTES, ALIGNMENT = 2 << 20, 32 << 20, 64
MAP_FIXED = 0x10

POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, of Linux 5.14: what the memory holds stays as it is."""

COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1: memory of which at least one small page is there becomes a huge page, in place."""

_libc = ctypes.CDLL(None, use_errno=True)  # its calls let Python's other threads run, unlike mmap's
_libc.mmap.restype = ctypes.c_void_p


class Chunk:
    """A stretch of memory that tensors are cut from, one after another; it is given back when the last one is gone.

    With a `descriptor` it is that file's, of `num_bytes`, and others that map it see the same; not to be written to, if
    `is_read_only`. Raises `OSError`.
    """

    def __init__(self, num_bytes: int, descriptor: int | None = None, is_read_only: bool = False):
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._begin = -self._bytes.data_ptr() % HUGE_PAGE
        self.num_taken_bytes = 0
        if descriptor is not None:
            _map_file(self._bytes.data_ptr() + self._begin, num_bytes, descriptor, is_read_only)
        with contextlib.suppress(AttributeError, OSError):  # a system without them: the memory is as good as any
            memory.madvise(mmap.MADV_HUGEPAGE)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Returns a tensor on the CPU, contiguous, that holds zeros or anything; None where there is no room left."""
        tensor = self.at(self.num_taken_bytes, shape, dtype)
        if tensor is not None:
            self.num_taken_bytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return tensor

    def at(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Returns the tensor that begins there, in bytes; None where it would end outside."""
        begin, num_bytes = self._begin + offset, math.prod(shape) * dtype.itemsize
        if begin + num_bytes > len(self._bytes):
            return None
        return self._bytes[begin : begin + num_bytes].view(dtype).view(*shape)

    def find(self, tensor: Tensor) -> int | None:
        """Returns where a tensor begins that was taken of it, in bytes; None for any other."""
        offset = tensor.data_ptr() - self._bytes.data_ptr() - self._begin
        return offset if 0 <= offset < self.num_taken_bytes else None


def _map_file(address: int, num_bytes: int, descriptor: int, is_read_only: bool) -> None:
    """Puts a file in the place of memory. Python's own call takes no address, and huge pages need one that fits."""
    where, flags = ctypes.c_void_p(address), mmap.MAP_SHARED | MAP_FIXED
    access = mmap.PROT_READ if is_read_only else mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(where, ctypes.c_size_t(num_bytes), access, flags, descriptor, ctypes.c_long(0)) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_huge(address: int, num_bytes: int) -> None:
    """Has memory of a file in huge pages, as far as the system has them; what it holds stays."""
    huge = range(address // HUGE_PAGE * HUGE_PAGE, address + num_bytes, HUGE_PAGE)
    for page in huge:
        advise(page, mmap.PAGESIZE, POPULATE_WRITE)
    advise(huge.start, len(huge) * HUGE_PAGE, COLLAPSE)


def advise(address: int, num_bytes: int, advice: int) -> bool:
    """Returns whether the system has taken the advice."""
    return _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), advice) == 0


class _Cut(threading.local):
    """The chunk that the calling thread cuts from at present: two threads must not be given the same memory."""

    chunk: Chunk | None = None


_cut = _Cut()


@contextlib.contextmanager
def allocate_from(chunk: Chunk) -> Iterator[None]:
    """Inside the block `empty_huge` takes of `chunk`, as long as that has room."""
    before, _cut.chunk = _cut.chunk, chunk
    try:
        yield
    finally:
        _cut.chunk = before


def empty_huge(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns a tensor on the CPU, contiguous, that holds zeros or anything; it takes memory as it is written to.

    Small tensors share pages with their neighbours: this is for what lives as long as the model.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    taken = None if _cut.chunk is None else _cut.chunk.take(shape, dtype)
    if taken is None:
        chunk = Chunk(max(CHUNK_BYTES, num_bytes))
        taken = chunk.take(shape, dtype)
        assert taken is not None
        if num_bytes < CHUNK_BYTES:
            _cut.chunk = chunk
    return taken
