"""What each full page of the KV cache holds, written where it outlives the process, so that the next one finds it.

A page is sealed when all its slots are computed, and unsealed when it becomes free; no step writes to it in between.
Its record names what it holds as vLLM's block hashes do: by a digest of its tokens and of the digest of the page before
it. So any one of several pages that hold the same will do, and a page whose beginning is lost is recognised. The seal
is a digest of the record and is written last: a record that was cut off has none, or a wrong one. The checksum in the
record is of K and V.
"""

import random
import struct
from collections.abc import Collection
from hashlib import blake2b
from typing import NamedTuple, Protocol

from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.radix import Node, RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import SALT_BYTES

DIGEST_BYTES = 16
FIELDS = struct.Struct(f"<{DIGEST_BYTES}s{DIGEST_BYTES}s{SALT_BYTES}sqQ")
NOTHING_BEFORE = bytes(DIGEST_BYTES)
NO_SALT = bytes(SALT_BYTES)
WORD_BYTES = 8


class PageMemory(Protocol):
    """The memory of the pages, where it outlives the process.

    `notes`: bytes that outlive it as well, zeros at first; at least 80 a page, and 4 for each of its tokens.
    """

    notes: memoryview

    def checksum(self, page: int) -> int:
        """Returns 64 bits that follow from K and V of a page."""
        ...

    def damage(self, page: int) -> None:
        """Overwrites some of K and V of a page, on purpose."""
        ...


class Record(NamedTuple):
    """A page holds `tokens`, as int32 bytes, behind what `before` is the digest of. Request `uid` computed it."""

    digest: bytes
    before: bytes
    salt: bytes
    uid: int
    checksum: int
    tokens: bytes


class PageJournal(PageObserver):
    """The records of all pages. `stamps` has when each was used last, counted, if those behind it were not since.

    `num_recovered` pages of a predecessor were found. `num_dropped` were sealed and are not what they were, or have
    lost their beginning.
    """

    def __init__(self, memory: PageMemory, num_pages: int, page_size: int):
        self.num_recovered = 0
        self.num_dropped = 0
        self._memory = memory
        self._page_size = page_size
        self._num_bytes = FIELDS.size + 4 * page_size
        end = WORD_BYTES * num_pages
        self._seals = memory.notes[:end].cast("Q")
        self.stamps = memory.notes[end : 2 * end].cast("Q")
        self._records = memory.notes[2 * end : 2 * end + num_pages * self._num_bytes]
        assert len(self._records) == num_pages * self._num_bytes, "there is no room for a record of each page"

    def digest(self, page: int) -> bytes:
        """Returns the digest of a sealed page."""
        start = page * self._num_bytes
        return bytes(self._records[start : start + DIGEST_BYTES])

    def sealed_pages(self) -> list[int]:
        return [page for page, seal in enumerate(self._seals) if seal]

    def seal(self, page: int, page_before: int | None, tokens: bytes, salt: bytes, uid: int, stamp: int) -> None:
        """Notes that `page` holds `tokens` (int32) behind those of the sealed page before, or as the first ones."""
        before = NOTHING_BEFORE if page_before is None else self.digest(page_before)
        digest = digest_of(before, salt, tokens)
        record = FIELDS.pack(digest, before, salt, uid, self._memory.checksum(page)) + tokens
        self._records[page * self._num_bytes : (page + 1) * self._num_bytes] = record
        self.stamps[page] = stamp
        self._seals[page] = _seal_of(page, record)

    def unseal(self, pages: Collection[int]) -> None:
        """Lets the pages be written to."""
        for page in pages:
            self._seals[page] = 0

    def on_filled(self, req: Req, num_pages: int, clock: int) -> None:
        start, size = num_pages, self._page_size
        while start and not self._seals[req.pages[start - 1]]:
            start -= 1
        for index in range(start, num_pages):
            before = req.pages[index - 1] if index else None
            tokens = req.token_ids[index * size : (index + 1) * size].tobytes()
            self.seal(req.pages[index], before, tokens, req.pending.salt, req.uid, clock)

    def on_freed(self, pages: Collection[int]) -> None:
        self.unseal(pages)

    def gauges(self) -> dict[str, float]:
        return {"pages_recovered": self.num_recovered, "pages_dropped": self.num_dropped}

    def check(self, free: Collection[int], cached: Collection[int]) -> None:
        sealed = set(self.sealed_pages())
        assert sealed.issuperset(cached), "a cached page is not sealed"
        assert sealed.isdisjoint(free), "a free page is sealed"

    def damage(self, num_pages: int) -> None:
        """Overwrites K and V of so many sealed pages, or of all, on purpose."""
        sealed = self.sealed_pages()
        for page in random.sample(sealed, min(num_pages, len(sealed))):
            self._memory.damage(page)

    def recover(self, tree: RadixTree) -> set[int]:
        """Puts what a predecessor sealed into the empty `tree`, and returns the pages; all others are unsealed."""
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
            self.unseal(pages)
        for _, node in sorted(used, key=lambda one: one[0]):
            tree.touch(node)
        self.num_recovered = len(recovered)
        return recovered

    def _find_intact(self) -> dict[bytes, list[int]]:
        """Returns the sealed pages that are what they were, by the digest before them, and unseals the others."""
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
                self.unseal((page,))
        return followers

    def _is_intact(self, page: int, record: Record) -> bool:
        start = page * self._num_bytes
        seal = _seal_of(page, bytes(self._records[start : start + self._num_bytes]))
        return seal == self._seals[page] and record.checksum == self._memory.checksum(page)

    def _follow(self, page: int, followers: dict[bytes, list[int]]) -> list[int]:
        """Returns the page and those behind it, as far as there is one way to go and one request computed them."""
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
    """Returns what names a page of `tokens` (int32) behind the page of which `before` is the digest."""
    return blake2b(before + salt + tokens, digest_size=DIGEST_BYTES).digest()


def _seal_of(page: int, record: bytes) -> int:
    """Returns what only this page with this record has; never 0."""
    digest = blake2b(page.to_bytes(WORD_BYTES, "little") + record, digest_size=WORD_BYTES).digest()
    return int.from_bytes(digest, "little") | 1
