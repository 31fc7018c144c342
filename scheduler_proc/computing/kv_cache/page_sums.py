"""Which pages of the KV cache are whole in all ranks of an engine, after one of them has died.

The scheduler's journal knows what its pages hold, and seals a page when its tokens are committed: then all ranks have
written their parts of it. Each rank has a checksum of each page that it has filled, in the notes of its memory. A rank
whose memory was not in the scheduler's last engine, as on a machine that returns, has the pages of an older one.
"""

import time

import numpy as np
import torch

from messages.ring.steps import Batch
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.parallel import ParallelGroup

WORD_BITS = 64


class PageSums:
    """The checksums of the pages in `memory`, a rank's; 0 for a page that is not full."""

    def __init__(self, memory: KVMemory, page_size: int):
        self._memory = memory
        self._page_size = page_size
        self._sums = np.frombuffer(memory.notes, np.uint64, memory.num_pages)

    def record(self, batch: Batch) -> None:
        """Records the pages that a step has filled. It may also have written to pages that were full before."""
        slots = np.frombuffer(batch.slots, np.int64)
        pages, offsets = np.divmod(slots[slots >= 0], self._page_size)
        self._sums[pages] = 0
        for page in pages[offsets == self._page_size - 1]:
            self._sums[page] = self._memory.checksum(page)

    def find_intact(self) -> np.ndarray:
        """Returns for each page whether it is full and has its checksum."""
        intact = np.zeros(len(self._sums), bool)
        for page in np.flatnonzero(self._sums):
            intact[page] = self._sums[page] == self._memory.checksum(page)
        return intact


def find_lost_pages(memory: KVMemory, page_size: int, everyone: ParallelGroup) -> frozenset[int]:
    """Returns the pages that are not whole in a rank other than the scheduler, once all ranks have called this."""
    num_pages = memory.num_pages
    (engine, next_engine), *_ = everyone.gather([memory.engine, time.time_ns()], torch.device("cpu"))
    if memory.engine != engine:
        intact = np.zeros(num_pages, bool)
    else:
        intact = PageSums(memory, page_size).find_intact() if everyone.rank else np.ones(num_pages, bool)
    memory.engine = next_engine
    bits = np.zeros(-(-num_pages // WORD_BITS) * WORD_BITS, bool)
    bits[:num_pages] = intact
    words = np.packbits(bits).view(np.int64).tolist()
    of_all = np.bitwise_and.reduce(np.array(everyone.gather(words, torch.device("cpu"))), axis=0)
    return frozenset(np.flatnonzero(np.unpackbits(of_all.view(np.uint8))[:num_pages] == 0).tolist())
