"""Memory in huge pages, by system calls that Python's `mmap` lacks. Without torch, for the supervisor uses it too."""

import ctypes
import mmap
import os

HUGE_PAGE = 2 << 20
MAP_FIXED = 0x10

POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, of Linux 5.14: the contents of the memory stay as they are."""

COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1: memory with at least one small page present becomes a huge page, in place."""

_libc = ctypes.CDLL(None, use_errno=True)  # its calls let Python's other threads run, unlike mmap's
_libc.mmap.restype = ctypes.c_void_p


def map_file(address: int, num_bytes: int, descriptor: int, offset: int = 0, *, is_read_only: bool = False) -> None:
    """Maps a file, from `offset` on, over memory. Raises `OSError`.

    Python's own call takes no address, and huge pages need an aligned one.
    """
    where, flags = ctypes.c_void_p(address), mmap.MAP_SHARED | MAP_FIXED
    access = mmap.PROT_READ if is_read_only else mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(where, ctypes.c_size_t(num_bytes), access, flags, descriptor, ctypes.c_long(offset)) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_huge(address: int, num_bytes: int) -> None:
    """Moves memory of a file into huge pages, as far as the system has them; its contents stay."""
    huge = range(address // HUGE_PAGE * HUGE_PAGE, address + num_bytes, HUGE_PAGE)
    for page in huge:
        advise(page, mmap.PAGESIZE, POPULATE_WRITE)
    advise(huge.start, len(huge) * HUGE_PAGE, COLLAPSE)


def advise(address: int, num_bytes: int, advice: int) -> bool:
    """True if the system has accepted the advice."""
    return _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), advice) == 0
