"""One tier: which page is in which slot of its file, and the time that reads take."""

from collections import OrderedDict
from collections.abc import Sequence

from scheduler_proc.computing.tiers.slot_file import SlotFile

DECAY = 0.98
"""The weight of the previous reads when a new one is measured."""


class Tier:
    """The main thread owns the index: a page is in it once it has been written, until its slot is reused."""

    def __init__(self, name: str, file: SlotFile, num_slots: int):
        self.name = name
        self.file = file
        self.num_slots = num_slots
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        """By digest; the least recently used first."""
        self._writing: dict[bytes, int] = {}
        self._free: list[int] = []
        self._num_taken = 0
        """Slots from this one on were never used."""
        self.page_read_s = 0.0
        """The time to read a page, 0 before the first read."""
        self._read_s = self._num_read = 0.0
        """The time and the number of pages of the latest reads."""
        self.num_hit_pages = 0
        self.num_written_pages = 0
        self.num_errors = 0

    @property
    def num_pages(self) -> int:
        return len(self._slots)

    def find(self, digest: bytes) -> int | None:
        """Returns the slot of a page."""
        return self._slots.get(digest)

    def has(self, digest: bytes) -> bool:
        """True if the tier has the page, or will have it; marks the page as used."""
        if digest in self._slots:
            self._slots.move_to_end(digest)
            return True
        return digest in self._writing

    def place(self, digest: bytes) -> tuple[int, bytes | None] | None:
        """Returns the slot for writing a page, and the page that it evicts; `None` if no slot is left."""
        victim = None
        if self._free:
            slot = self._free.pop()
        elif self._num_taken < self.num_slots:
            slot = self._num_taken
            self._num_taken += 1
        elif self._slots:
            victim, slot = self._slots.popitem(last=False)
        else:
            return None
        self._writing[digest] = slot
        return slot, victim

    def record_written(self, slot: int, digest: bytes, error: OSError | None) -> None:
        """Records a written page. An error gives up its slot: a full disk limits the tier to its current size."""
        if self._writing.get(digest) != slot:  # the tier has been cleared in the meantime
            self._free.append(slot)
            return
        del self._writing[digest]
        if error is None:
            self._slots[digest] = slot
            self.num_written_pages += 1
        else:
            self.num_errors += 1
            self.num_slots = self._num_taken

    def record_read(self, num_pages: int, seconds: float) -> None:
        """Records the time of one read of several pages, in the reading thread."""
        # A read of one page is mostly overhead, so times are not averaged per read.
        self._read_s = DECAY * self._read_s + seconds
        self._num_read = DECAY * self._num_read + num_pages
        self.page_read_s = self._read_s / self._num_read

    def drop(self, digest: bytes) -> None:
        """Forgets a page that could not be read."""
        slot = self._slots.pop(digest, None)
        self.num_errors += 1
        if slot is not None:
            self._free.append(slot)

    def write(self, slot: int, digests: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Writes pages into consecutive slots that `place` has returned, in the writing thread.

        Raises `OSError`.
        """
        self.file.write(slot, digests, pages)

    def clear(self) -> None:
        """Forgets every page."""
        self._free += self._slots.values()
        self._slots.clear()
        self._writing.clear()

    def close(self) -> None:
        """Closes the file; no reads or writes may follow."""
        self.file.close()

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters, with the tier's name as prefix."""
        page_bytes, name = self.file.slot_bytes, self.name
        return {
            f"{name}_pages": self.num_pages,
            f"{name}_bytes": self.num_pages * page_bytes,
            f"{name}_hit_pages": self.num_hit_pages,
            f"{name}_written_bytes": self.num_written_pages * page_bytes,
            f"{name}_read_bytes": self.num_hit_pages * page_bytes,
            f"{name}_read_bytes_per_s": page_bytes / self.page_read_s if self.page_read_s else 0.0,
            f"{name}_errors": self.num_errors,
        }
