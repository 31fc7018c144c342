"""Records what each full page of the KV cache holds, in memory that outlives the process, for its successor.

A page is sealed when all its slots are computed, and unsealed when it is freed; no step writes to it in between. Its
record identifies the contents as vLLM's block hashes do: by a digest of its tokens and the digest of the previous page.
Pages with equal contents are therefore interchangeable, and a page whose prefix is lost is recognised. The seal is a
digest of the record and is written last, so a truncated record has none or a wrong one. The record has a checksum of K
and V. A window page or a checkpoint is recorded by the digest of its page and a checksum, which shows later whether it
was overwritten.
"""

import random
import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Protocol

from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.radix import Node, RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.pages.window_pages import WindowPages
from scheduler_proc.deciding.requests import SALT_BYTES

DIGEST_BYTES = 16
FIELDS = struct.Struct(f"<{DIGEST_BYTES}s{DIGEST_BYTES}s{SALT_BYTES}sqQ")
NOTHING_BEFORE = bytes(DIGEST_BYTES)
NO_SALT = bytes(SALT_BYTES)
WORD_BYTES = 8


class PageMemory(Protocol):
    """Memory of pages that outlives the process.

    `notes`: bytes that outlive it, too; initially zeros. There are at least 80 per page, 4 per token, and 16 per window
    page and per state slot. `lost_pages`: those of which another rank has lost its part.
    """

    notes: memoryview
    lost_pages: Collection[int]

    def checksum(self, page: int, *, is_window: bool = False) -> int:
        """Returns a 64-bit checksum of K and V of a page or a window page."""
        ...

    def checksum_state(self, slot: int) -> int:
        """Returns a 64-bit checksum of the recurrent state in a slot."""
        ...

    def damage(self, page: int) -> None:
        """Overwrites a part of K and V of a page (fault injection)."""


class Record(NamedTuple):
    """A page of `tokens` (int32 bytes) after the page with digest `before`. Request `uid` computed it."""

    digest: bytes
    before: bytes
    salt: bytes
    uid: int
    checksum: int
    tokens: bytes


class PageJournal(PageObserver):
    """The records of all pages. The radix tree writes the clock of the last use of each node to `stamps`.

    `num_recovered` pages of a predecessor are intact. `num_dropped` pages were sealed but are damaged, or have lost
    their prefix.
    """

    outlives_process = True

    def __init__(
        self, memory: PageMemory, num_pages: int, page_size: int, num_window_pages: int = 0, num_state_slots: int = 0
    ):
        self.windows: WindowPages | None = None
        """Set once they are known, if there are window pages."""
        self.num_recovered = 0
        self.num_dropped = 0
        self._memory = memory
        self._page_size = page_size
        self._num_bytes = FIELDS.size + 4 * page_size
        end = WORD_BYTES * num_pages
        self._seals = memory.notes[:end].cast("Q")
        self.stamps = memory.notes[end : 2 * end].cast("Q")
        self._records = memory.notes[2 * end : 2 * end + num_pages * self._num_bytes]
        assert len(self._records) == num_pages * self._num_bytes, "the memory has no room for a record of each page"
        start = 2 * end + num_pages * self._num_bytes
        middle = start + 2 * WORD_BYTES * num_window_pages
        self._window_notes = memory.notes[start:middle].cast("Q")
        """By window page: the beginning of its page's digest, and its checksum."""
        self._state_notes = memory.notes[middle : middle + 2 * WORD_BYTES * num_state_slots].cast("Q")
        """The same by state slot."""

    def digest(self, page: int) -> bytes:
        """Returns the digest of a sealed page."""
        start = page * self._num_bytes
        return bytes(self._records[start : start + DIGEST_BYTES])

    def sealed_pages(self) -> list[int]:
        return [page for page, seal in enumerate(self._seals) if seal]

    def seal(self, page: int, page_before: int | None, tokens: bytes, salt: bytes, uid: int, stamp: int) -> None:
        """Records that `page` holds `tokens` (int32) after those of the sealed `page_before`, or as the first ones."""
        before = NOTHING_BEFORE if page_before is None else self.digest(page_before)
        digest = digest_of(before, salt, tokens)
        record = FIELDS.pack(digest, before, salt, uid, self._memory.checksum(page)) + tokens
        self._records[page * self._num_bytes : (page + 1) * self._num_bytes] = record
        self.stamps[page] = stamp
        self._seals[page] = _seal_of(page, record)

    def on_filled(self, req: Req, num_pages: int, clock: int) -> None:
        start, size = num_pages, self._page_size
        while start and not self._seals[req.pages[start - 1]]:
            start -= 1
        for index in range(start, num_pages):
            before = req.pages[index - 1] if index else None
            key = req.page_key(index * size, (index + 1) * size, size)
            self.seal(req.pages[index], before, key, req.pending.salt, req.uid, clock)
        if self.windows is not None:
            for page, window_page in self.windows.used_by(req, num_pages):
                if self._window_notes[2 * window_page] != self._short_digest(page):
                    checksum = self._memory.checksum(window_page, is_window=True)
                    self._record(self._window_notes, window_page, page, checksum)

    def on_state_kept(self, page: int, slot: int) -> None:
        self._record(self._state_notes, slot, page, self._memory.checksum_state(slot))

    def _record(self, notes: "memoryview[int]", index: int, page: int, checksum: int) -> None:
        """Records that a window page or state slot belongs to a sealed page."""
        notes[2 * index] = 0  # the old digest and the new checksum never meet
        notes[2 * index + 1] = checksum
        notes[2 * index] = self._short_digest(page)

    def on_freed(self, pages: Collection[int]) -> None:
        """Unseals the pages, which allows writes to them."""
        for page in pages:
            self._seals[page] = 0

    def gauges(self) -> dict[str, float]:
        return {"pages_recovered": self.num_recovered, "pages_dropped": self.num_dropped}

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        sealed = set(self.sealed_pages())
        assert sealed.issuperset(cached), "a cached page is not sealed"
        assert sealed.isdisjoint(free), "a free page is sealed"

    def damage(self, num_pages: int) -> None:
        """Overwrites K and V of up to `num_pages` sealed pages (fault injection)."""
        sealed = self.sealed_pages()
        for page in random.sample(sealed, min(num_pages, len(sealed))):
            self._memory.damage(page)

    def recover(self, tree: RadixTree) -> set[int]:
        """Puts the intact sealed pages of a predecessor into the empty `tree` and returns them; unseals all others."""
        followers = self._find_intact()
        used: list[tuple[int, Node]] = []
        recovered: set[int] = set()
        ends = [(tree.root, NOTHING_BEFORE)]
        while ends:
            node, digest = ends.pop()
            for page in followers.pop(digest, ()):
                run = self._follow(page, followers)
                stamp, records = max(self.stamps[page] for page in run), [self._read(page) for page in run]
                key = b"".join(record.tokens for record in records)
                end, _ = tree.insert(node, records[0].salt, key, run, records[0].uid)
                used.append((stamp, end))
                ends.append((end, records[-1].digest))
                recovered.update(run)
        for pages in followers.values():
            self.num_dropped += len(pages)
            self.on_freed(pages)
        for _, node in sorted(used, key=lambda one: one[0]):
            tree.touch(node)
        self.num_recovered = len(recovered)
        return recovered

    def find_windows(self) -> dict[int, int]:
        """Returns the intact window pages of a predecessor, by the sealed page that each belongs to."""
        return self._find_recorded(self._window_notes, partial(self._memory.checksum, is_window=True))

    def find_states(self) -> dict[int, int]:
        """Returns the slots of the intact checkpoints of a predecessor by page, the least recently used page first."""
        found = self._find_recorded(self._state_notes, self._memory.checksum_state)
        return dict(sorted(found.items(), key=lambda one: self.stamps[one[0]]))

    def _find_recorded(self, notes: "memoryview[int]", checksum_of: Callable[[int], int]) -> dict[int, int]:
        """Returns the intact window pages or state slots in `notes`, by the sealed page that each belongs to."""
        pages = {self._short_digest(page): page for page in self.sealed_pages()}
        found: dict[int, int] = {}
        for index in range(len(notes) // 2):
            page = pages.get(notes[2 * index])
            if page is not None and notes[2 * index + 1] == checksum_of(index):
                found.setdefault(page, index)
        return found

    def _short_digest(self, page: int) -> int:
        return int.from_bytes(self.digest(page)[:WORD_BYTES], "little")

    def _find_intact(self) -> dict[bytes, list[int]]:
        """Returns the intact sealed pages by the digest before them, and unseals the others."""
        followers: dict[bytes, list[int]] = {}
        known: set[bytes] = set()
        for page in self.sealed_pages():
            record = self._read(page)
            is_intact = self._is_intact(page, record)
            self.num_dropped += not is_intact
            if is_intact and record.digest not in known:
                known.add(record.digest)
                followers.setdefault(record.before, []).append(page)
            else:
                self.on_freed((page,))
        return followers

    def _is_intact(self, page: int, record: Record) -> bool:
        if page in self._memory.lost_pages:
            return False
        start = page * self._num_bytes
        seal = _seal_of(page, bytes(self._records[start : start + self._num_bytes]))
        return seal == self._seals[page] and record.checksum == self._memory.checksum(page)

    def _follow(self, page: int, followers: dict[bytes, list[int]]) -> list[int]:
        """Returns the page and its successors, up to a branch or a page that another request computed."""
        run, record = [page], self._read(page)
        while len(behind := followers.get(record.digest, ())) == 1:
            following = self._read(behind[0])
            if following.uid != record.uid:
                break
            del followers[record.digest]
            run.append(behind[0])
            record = following
        return run

    def _read(self, page: int) -> Record:
        start = page * self._num_bytes
        record = bytes(self._records[start : start + self._num_bytes])
        digest, before, salt, uid, checksum = FIELDS.unpack_from(record)
        return Record(digest, before, b"" if salt == NO_SALT else salt, uid, checksum, record[FIELDS.size :])


def digest_of(before: bytes, salt: bytes, tokens: bytes) -> bytes:
    """Returns the digest of a page of `tokens` (int32) after the page with digest `before`."""
    return blake2b(before + salt + tokens, digest_size=DIGEST_BYTES).digest()


def _seal_of(page: int, record: bytes) -> int:
    """Returns the seal of this page with this record; never 0."""
    digest = blake2b(page.to_bytes(WORD_BYTES, "little") + record, digest_size=WORD_BYTES).digest()
    return int.from_bytes(digest, "little") | 1
