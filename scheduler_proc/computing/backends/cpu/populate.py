"""Gets memory for the pages of the KV cache before a step writes to them (`--kv-populate`).

The operating system provides and clears memory when it is first written, which delays the step: on a virtual machine,
whose host has to find the memory too, by milliseconds per huge page. Memory of a file comes in small pages by default,
which take longer to read; it is made huge in the same way.
"""

import ctypes
import logging
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from torch import Tensor

from kernels.cpu.huge_memory import POPULATE_WRITE, advise, make_huge
from runtime.background import lower_priority
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes

SLICE_BYTES = 2 << 20
"""The size of one request per tensor: it cannot be interrupted, and locks the process's memory map."""

LEAD_BYTES, LEAD_SHARE = 512 << 20, 1 / 8
"""The memory that `background` keeps ready ahead of the highest page used: this many bytes, at least this share of all
memory, at least one slice of all tensors. It doubles each time steps have used three quarters of it."""

REST_S = 0.05
LOOK_S = 0.25
"""The thread looks this often whether steps have ended: each look takes the GIL from the thread of the steps."""

NUM_PER_USED = 2
"""The number of pages that may get memory while steps run, per page that steps use."""

LEFT_FREE = 1 / 8
"""The share of the memory available at the start that is left to other programs."""

RETRY_S = 10.0
"""The pause after too little memory was left."""

log = logging.getLogger("sluice.populate")


class PagePopulation:
    """Gets the memory of the pages, from the first to the last: steps use them in that order.

    `tensors` are those of each layer's cache, whose first dimension is slots; `is_file`: their memory is a file's. The
    tensors of window pages are shorter, and used in the same order. State slots, as pages of one slot each, have a
    population of their own.
    """

    def __init__(self, tensors: Sequence[Tensor], num_pages: int, is_file: bool = False, name: str = "KV cache"):
        self._name = name
        self._is_file = is_file
        self._tensors = tensors
        self._num_pages = num_pages
        self._longest = max(len(tensor) for tensor in tensors)
        self._slice_pages = max(1, SLICE_BYTES * num_pages // max(tensor.nbytes for tensor in tensors))
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        lead_bytes = max(LEAD_BYTES, LEAD_SHARE * num_bytes)
        self._lead_pages = self._slice_pages * math.ceil(lead_bytes * num_pages / num_bytes / self._slice_pages)
        self.num_ready = 0
        self._num_requested = self._num_used = 0
        """The pages that the thread gets memory for."""
        self._num_due = 0
        """The pages that may get memory while steps run."""
        self._had_lead = False
        """The whole lead has had its memory since it doubled."""
        self._thread: threading.Thread | None = None
        self.is_needed = threading.Event()
        """Ends the thread's pause."""
        self._num_tensors_ahead = 0
        """Tensors that also have the memory of the slice after `num_ready`."""
        self._least_left_bytes = LEFT_FREE * available_memory_bytes(MEMORY_INFO, CGROUP)
        self._retry_s, self._has_warned = math.inf, False
        self._is_stepping = False
        self._last_step_s = 0.0

    def start(self, num_used: int = 0) -> None:
        """Gets memory for the pages behind the first `num_used`, in a low-priority thread; from then on `use` does.

        The thread ends when it is far enough ahead, with this object, and with the program.
        """
        self._num_due += NUM_PER_USED * max(0, num_used - self._num_used)
        self._num_used = max(self._num_used, num_used)
        if self._had_lead and self.is_short:
            self._lead_pages, self._had_lead = min(2 * self._lead_pages, self._num_pages), False
        whole_slices = self._num_used // self._slice_pages * self._slice_pages
        self._num_requested = min(whole_slices + self._lead_pages, self._num_pages)
        if self.is_due:
            self.is_needed.set()
        if self.needs_more and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=_populate, args=(weakref.ref(self),), name="populate")
            self._thread.start()

    def run(self, report: Callable[[str, float | None], None]) -> None:
        """Gets all memory, as far as the system provides it."""
        self._num_requested = self._num_pages
        while self.needs_more and self.ask():
            report(f"populating the {self._name}", self.num_ready / self._num_pages)

    def use(self, highest_page: int, max_new_pages: int) -> None:
        """Makes the memory of a file huge up to this page before a step writes to it, for up to `max_new_pages` pages.

        Other memory is huge from its first use. Soon after the start the thread does it: the first step need not wait.
        """
        num_used = highest_page + 1
        is_left_to_thread = self._num_requested and num_used <= self._slice_pages
        if self._is_file and self.num_ready < num_used and not is_left_to_thread:
            begin = max(self.num_ready, num_used - max_new_pages - self._slice_pages)
            for place in [self._find(tensor, begin, num_used) for tensor in self._tensors]:
                if place[1]:
                    make_huge(*place)
            self.num_ready = max(self.num_ready, num_used)
        if self._num_requested or time.monotonic() >= self._retry_s:
            self.start(num_used)

    def __enter__(self) -> None:
        """Gets little memory during the block and right after it, when the next step is planned.

        Compute threads that wait for each other yield to any thread, and clearing memory cannot be interrupted.
        """
        self._is_stepping = True

    def __exit__(self, *_: object) -> None:
        self._is_stepping = False
        self._last_step_s = time.monotonic()

    @property
    def needs_more(self) -> bool:
        return self.num_ready < self._num_requested

    @property
    def is_short(self) -> bool:
        """True if less than a quarter of the lead has memory."""
        return 4 * (self.num_ready - self._num_used) < self._lead_pages

    @property
    def is_due(self) -> bool:
        """True if the thread must work while steps run, faster than they use memory."""
        return self.is_short and self._num_due > 0

    @property
    def is_at_rest(self) -> bool:
        """True if no step is running or about to run."""
        return not self._is_stepping and time.monotonic() - self._last_step_s >= REST_S

    def ask(self) -> bool:
        """Gets the memory of the next slice of one tensor; False if too little is left or the system refuses.

        Then the rest is provided as it is used.
        """
        if not self._num_tensors_ahead and available_memory_bytes(MEMORY_INFO, CGROUP) < self._least_left_bytes:
            self._retry_s = time.monotonic() + RETRY_S
            return self._give_up("too little memory would be left")
        end = min(self.num_ready + self._slice_pages, self._num_pages)
        first, size = self._find(self._tensors[self._num_tensors_ahead], self.num_ready, end)
        if self._is_file and size:
            make_huge(first, size)
        if not advise(first, size, POPULATE_WRITE):
            return self._give_up(os.strerror(ctypes.get_errno()))
        self._num_tensors_ahead = (self._num_tensors_ahead + 1) % len(self._tensors)
        if not self._num_tensors_ahead:
            self.num_ready = max(self.num_ready, end)
            self._num_due = max(0, self._num_due - self._slice_pages)
            self._had_lead |= not self.needs_more
        return True

    def _give_up(self, why: str) -> bool:
        self._num_requested = 0
        level, self._has_warned = logging.DEBUG if self._has_warned else logging.WARNING, True
        log.log(level, "%s: %d of %d pages are populated: %s", self._name, self.num_ready, self._num_pages, why)
        return False

    def _find(self, tensor: Tensor, begin: int, end: int) -> tuple[int, int]:
        """Returns the address and size of a layer's pages in [begin, end), widened to whole system pages."""
        num_pages = max(1, self._num_pages * len(tensor) // self._longest)
        begin, end, page_bytes = min(begin, num_pages), min(end, num_pages), tensor.nbytes // num_pages
        first = (tensor.data_ptr() + begin * page_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        return first, tensor.data_ptr() + end * page_bytes - first if begin < end else 0


def _populate(owner: "weakref.ref[PagePopulation]") -> None:
    """Gets memory until there is enough, the owner is gone or the main thread has ended.

    The thread is not a daemon: if it holds the last reference to a tensor, torch releases the GIL while it frees the
    memory. When the interpreter exits, a daemon thread is unwound as it takes the GIL again, which in C++ code means
    `std::terminate`.
    """
    lower_priority()
    while threading.main_thread().is_alive() and (population := owner()) is not None and population.needs_more:
        if population.is_at_rest or population.is_due:
            population.ask()
        else:
            is_needed = population.is_needed
            del population  # it may be collected meanwhile
            is_needed.wait(LOOK_S)
            is_needed.clear()
