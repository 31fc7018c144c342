"""Memory for the pages that come next, asked for before a step writes to them.

The system gives memory when it is first written, and clears it then. That holds a step up: on a virtual machine, whose
host has to find the memory too, for milliseconds with each huge page. Memory of a file comes in small pages by itself,
which take longer to read; it is made huge in the same way.
"""

import ctypes
import logging
import mmap
import os
import threading
import time
import weakref
from collections.abc import Sequence

from torch import Tensor

from kernels.cpu.huge_pages import POPULATE_WRITE, advise, make_huge
from runtime.background import lower_priority

CHUNK_BYTES = 2 << 20
AHEAD_BYTES = 384 << 20
"""All tensors together."""

REST_S = 0.05

log = logging.getLogger("sluice.prefault")


class Prefault:
    """Stays ahead of the highest page in use, in a thread that works while no step runs. Pages are used in order.

    `tensors` are those of each layer's cache, whose first dimension is slots; `is_file`: their memory is a file's. The
    thread ends with this object, and with the program.
    """

    def __init__(self, tensors: Sequence[Tensor], num_pages: int, is_file: bool = False):
        self.is_file = is_file
        self._tensors = tensors
        self._num_pages = num_pages
        self._chunk_pages = max(1, CHUNK_BYTES * num_pages // tensors[0].nbytes)
        self._ahead_pages = max(1, AHEAD_BYTES * num_pages // sum(tensor.nbytes for tensor in tensors))
        self._num_used = 0
        self._num_ready = 0
        self._num_tensors_ahead = 0
        """Tensors that have the chunk behind `_num_ready`, too."""
        self._is_stepping = False
        self._last_step_s = 0.0
        self._thread: threading.Thread | None = None

    def use(self, highest_page: int, max_new_pages: int) -> None:
        """The pages behind this one are wanted next. Returns at once, unless new pages of a file are to be huge first.

        They are so many at most. Other memory is huge from its first use.
        """
        self._num_used = max(self._num_used, highest_page + 1)
        if self.is_file and self._num_ready < self._num_used:
            begin = max(self._num_ready, self._num_used - max_new_pages)
            for tensor in self._tensors:
                make_huge(*self._find(tensor, begin, self._num_used))
            self._num_ready = self._num_used
        if self._thread is not None and self._thread.is_alive():
            return  # it sees for itself
        if self._num_ready < min(self._num_used + self._ahead_pages // 2, self._num_pages):
            self._num_ready = max(self._num_ready, self._num_used)
            self._thread = threading.Thread(target=_stay_ahead, args=(weakref.ref(self),), name="pages ahead")
            self._thread.start()

    def __enter__(self) -> None:
        """No memory is asked for while the block runs, nor right behind it, where the next step is planned.

        Compute threads that wait for each other give way to any thread, and clearing memory is not interrupted.
        """
        self._is_stepping = True

    def __exit__(self, *_: object) -> None:
        self._is_stepping = False
        self._last_step_s = time.monotonic()

    @property
    def wants_more(self) -> bool:
        return self._num_ready < min(self._num_used + self._ahead_pages, self._num_pages)

    @property
    def is_at_rest(self) -> bool:
        """Tells whether memory may be asked for now."""
        return not self._is_stepping and time.monotonic() - self._last_step_s >= REST_S

    def ask(self) -> None:
        """Asks for the memory of the next chunk of pages of one tensor, and returns when it is there."""
        end = min(self._num_ready + self._chunk_pages, self._num_pages)
        tensor = self._tensors[self._num_tensors_ahead]
        first, size = self._find(tensor, self._num_ready, end)
        if self.is_file:
            make_huge(first, size)
        if not advise(first, size, POPULATE_WRITE):
            log.info("page memory is not prefaulted: %s", os.strerror(ctypes.get_errno()))
            self._num_ready = self._num_pages  # nor will it be
            return
        self._num_tensors_ahead = (self._num_tensors_ahead + 1) % len(self._tensors)
        if not self._num_tensors_ahead:
            self._num_ready = end

    def _find(self, tensor: Tensor, begin: int, end: int) -> tuple[int, int]:
        """Returns the address and size of pages [begin, end) of a layer; the system's own at both ends in whole."""
        page_bytes = tensor.nbytes // self._num_pages
        first = (tensor.data_ptr() + begin * page_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        return first, tensor.data_ptr() + end * page_bytes - first


def _stay_ahead(owner: "weakref.ref[Prefault]") -> None:
    """Asks for memory until there is enough, the owner is gone or the main thread has ended.

    It is no daemon thread: where it holds the last reference to a tensor, torch gives Python's lock away while it frees
    the memory. At the end of the interpreter a daemon thread is unwound where it asks for the lock again, and in C++
    code that means `std::terminate`.
    """
    lower_priority()
    while threading.main_thread().is_alive() and (ahead := owner()) is not None and ahead.wants_more:
        if ahead.is_at_rest:
            ahead.ask()
        else:
            del ahead  # it may go meanwhile
            time.sleep(REST_S)
