"""Which encoding has which rows of the memory for them: given out, kept, taken over from a predecessor, evicted."""

import time
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Protocol

from messages.columns import INT32
from messages.ring.encodings import KEY_BYTES, ROW_NOTE, num_rows_of

NO_KEY = bytes(KEY_BYTES)
NO_PLACES: "array[int]" = array(INT32)


class RowMemory(Protocol):
    """The rows of spans, as `scheduler_proc/computing/model/span_rows.py` keeps them.

    `notes`: bytes in front of the rows that outlive the process, with a `ROW_NOTE` for each; initially zeros. It calls
    `reserve` with the digest and the number of the rows that it is given, for their places.
    """

    num_rows: int
    row_bytes: int
    notes: memoryview | None
    reserve: Callable[[bytes, int], "array[int]"]

    def checksum(self, places: Sequence[int]) -> int:
        """Returns the checksum of the rows that an encoder has written to these places."""
        ...

    def load(self, places: Sequence[int]) -> None:
        """Makes what an encoder has written there available to the steps that are launched from now on."""
        ...


class RowPlaces:
    """The places of each encoding by its key. A complete one that nothing needs makes room, least recently used first.

    `num_recovered` are the encodings of a predecessor.
    """

    def __init__(self, memory: RowMemory):
        self._memory = memory
        self._complete: dict[bytes, array[int]] = {}
        """The least recently used first."""
        self._writing: dict[bytes, array[int]] = {}
        self._numbers = count(time.monotonic_ns())
        self.num_evicted = 0
        self._free: array[int] = array(INT32, range(memory.num_rows))
        for key, places in self._recover():
            self._complete[key] = places
        self.num_recovered = len(self._complete)
        if self._complete:
            taken = {place for places in self._complete.values() for place in places}
            self._free = array(INT32, [place for place in self._free if place not in taken])
        for place in self._free if memory.notes is not None else ():
            self._mark(place, NO_KEY)

    @property
    def num_complete(self) -> int:
        return len(self._complete)

    @property
    def num_in_use(self) -> int:
        """The number of rows that are not free."""
        return self._memory.num_rows - len(self._free)

    def __contains__(self, key: bytes) -> bool:
        """True if the encoding is complete."""
        return key in self._complete

    def find(self, key: bytes) -> "array[int]":
        """Returns the places of a complete encoding; empty if there is none."""
        return self._complete.get(key, NO_PLACES)

    def use(self, key: bytes) -> None:
        """Marks a complete encoding as used last."""
        self._complete[key] = self._complete.pop(key)

    def reserve(self, key: bytes, num_rows: int, needed: Collection[bytes]) -> "array[int] | None":
        """Returns places for an encoding, evicting others that are not `needed`; `None` if there is no room."""
        evictable = [other for other in self._complete if other not in needed]
        lacking = num_rows - len(self._free) - sum([len(self._complete[other]) for other in evictable])
        if lacking > 0:
            return None
        for other in evictable:
            if num_rows <= len(self._free):
                break
            self._release(self._complete.pop(other))
            self.num_evicted += 1
        places, self._free = self._free[:num_rows], self._free[num_rows:]
        self._writing[key] = places
        return places

    def begin(self, key: bytes) -> int:
        """Returns the number of a new ask, which alone may write to the places of this encoding from now on."""
        ask = next(self._numbers)
        for index, place in enumerate(self._writing[key]):
            self._mark(place, key, index, ask)
        return ask

    def complete(self, key: bytes, checksum: int) -> bool:
        """Returns whether the encoding is complete: whether its rows have this checksum."""
        places = self._writing[key]
        if self._memory.checksum(places) != checksum:
            return False
        for index, place in enumerate(places):
            self._mark(place, key, index, 0, checksum)
        self.keep(key)
        self._memory.load(places)
        return True

    def keep(self, key: bytes) -> None:
        """Marks an encoding as complete, which this process has written itself."""
        self._complete[key] = self._writing.pop(key)

    def drop(self, key: bytes) -> None:
        """Frees the places of an encoding that will not become complete."""
        self._release(self._writing.pop(key))

    def check(self) -> None:
        """Asserts that each place is free or has one owner."""
        owned = [*self._complete.values(), *self._writing.values()]
        places = [*self._free, *[place for own in owned for place in own]]
        assert sorted(places) == list(range(self._memory.num_rows)), "a row has no owner or two"

    def _release(self, places: "array[int]") -> None:
        for place in places:
            self._mark(place, NO_KEY)
        self._free += places

    def _mark(self, place: int, key: bytes, index: int = 0, ask: int = 0, checksum: int = 0) -> None:
        if self._memory.notes is not None:
            ROW_NOTE.pack_into(self._memory.notes, place * ROW_NOTE.size, key, index, ask, checksum)

    def _recover(self) -> Iterator[tuple[bytes, "array[int]"]]:
        """Yields the intact encodings that a predecessor has left."""
        notes, found = self._memory.notes, dict[tuple[bytes, int], dict[int, int]]()
        if notes is None:
            return
        for place, (key, index, ask, checksum) in enumerate(ROW_NOTE.iter_unpack(notes)):
            if key != NO_KEY and not ask:
                found.setdefault((key, checksum), {})[index] = place
        for (key, checksum), by_index in found.items():
            num_rows = num_rows_of(key)
            if len(by_index) != num_rows or max(by_index) != num_rows - 1:
                continue
            places = array(INT32, [by_index[index] for index in range(num_rows)])
            if self._memory.checksum(places) == checksum:
                self._memory.load(places)
                yield key, places
