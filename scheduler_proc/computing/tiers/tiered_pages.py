"""The tiers below the KV cache, with one thread that writes to them and one that reads.

A page goes into the first tier; what leaves that goes into the next. The main thread copies pages out of the cache and
into it and has the indices; the threads get slots, copy between files and memory, and report. Checkpoints of recurrent
states have tiers and threads of their own, in which a page is a state slot and has the name of the checkpoint's page.
"""

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Semaphore
from typing import NamedTuple

from torch import Tensor

from scheduler_proc.computing.device import Fetched
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.computing.tiers.slot_file import MAX_AT_ONCE
from scheduler_proc.computing.tiers.tier import Tier

MAX_QUEUED_BYTES = 128 << 20
"""The maximum size of pages that wait to be written; pages evicted beyond it are dropped."""

MAX_WRITTEN_AT_ONCE = 256
"""Pages in consecutive slots, which are written with one system call."""

READ_BYTES = 4 << 20
NUM_READS_AHEAD = 3
"""The maximum number of finished reads (of this size, or of a page) that wait for the main thread to copy them."""

READER_PATIENCE_S = 10.0
"""If the main thread copies nothing for this long, the pages are no longer needed."""

PUT_DECAY = 0.9
"""The weight of the previous puts when a new one is measured."""

WARN_EVERY_S = 60.0

log = logging.getLogger("sluice.kv_tiers")


class _Move(NamedTuple):
    """Moves a page to `slot`: from `row` of the evicted pages or, if that is -1, from a slot of the tier above."""

    tier: Tier
    slot: int
    digest: bytes
    row: int
    above: Tier | None = None
    slot_above: int = 0


class _Load:
    """`places`: tier and slot of each page. `is_over`: the rest is no longer needed."""

    def __init__(self, uid: int, pages: Sequence[int], digests: Sequence[bytes], places: list[tuple[Tier, int]]):
        self.uid = uid
        self.pages = pages
        self.digests = digests
        self.places = places
        self.num_loaded = 0
        self.is_over = False


class _Read(NamedTuple):
    """The next rows of a load. Rows after the first `num_good` could not be read."""

    load: _Load
    rows: Tensor
    num_good: int


class TieredPages:
    """A `PageStore` of tiers, the fastest first. `wake` is called in another thread when pages have been read."""

    def __init__(self, copies: PageCopies, tiers: Sequence[Tier], states: "TieredPages | None" = None):
        self.wake: Callable[[], None] = lambda: None
        self.states = states
        self.num_dropped = 0
        self.page_put_s = 0.0
        self._put_s = self._num_put = 0.0
        """The time and the number of pages of the latest puts."""
        self._copies = copies
        self._tiers = tiers
        page_bytes = max(1, copies.page_bytes)  # none in a model without attention
        self._max_queued = max(1, MAX_QUEUED_BYTES // page_bytes)
        self._read_pages = max(1, READ_BYTES // page_bytes)
        self._writer = ThreadPoolExecutor(1, "kv-tier-writer")
        self._reader = ThreadPoolExecutor(1, "kv-tier-reader")
        self._num_queued = 0
        """Written pages that are not in the index yet."""
        self._written: deque[tuple[int, list[tuple[_Move, OSError | None]]]] = deque()
        self._loads: dict[int, _Load] = {}
        self._reads: deque[_Read] = deque()
        self._reads_ahead = Semaphore(NUM_READS_AHEAD)
        self._reading_since_s = 0.0
        """When the running read began; 0 if none is running."""
        self._warned_s = 0.0

    def find(self, digest: bytes) -> str | None:
        return next((tier.name for tier in self._tiers if tier.find(digest) is not None), None)

    def touch(self, digests: Sequence[bytes]) -> None:
        for digest in reversed(digests):  # all others depend on the first one, so it is evicted last
            for tier in self._tiers:
                tier.has(digest)

    def put(self, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        begin_s = time.thread_time()  # the time of other programs on a busy machine is not a cost of the page
        self._record_written()
        requested = [pair for pair in zip(pages, digests, strict=True) if not self._tiers[0].has(pair[1])]
        kept = requested[: self._max_queued - self._num_queued]
        self.num_dropped += len(requested) - len(kept)
        if kept:
            moves = [move for row, (_, digest) in enumerate(kept) for move in self._plan(digest, row)]
            rows = self._copies.copy_out([page for page, _ in kept])
            self._num_queued += len(kept)
            self._writer.submit(self._write, rows, moves, len(kept), time.thread_time() - begin_s)

    def estimate_s(self, digests: Sequence[bytes]) -> float:
        """Counts the reads that are queued for others, less the time that the running one has already taken."""
        tiers = [next(tier for tier in self._tiers if tier.find(digest) is not None) for digest in digests]
        queued_s = sum(
            (len(load.places) - load.num_loaded) * load.places[-1][0].page_read_s for load in self._loads.values()
        )
        since_s = self._reading_since_s
        return sum(tier.page_read_s for tier in tiers) + queued_s + (time.monotonic() - since_s if since_s else 0.0)

    def load(self, uid: int, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        places: list[tuple[Tier, int]] = []
        for digest in digests:
            found = [(tier, slot) for tier in self._tiers if (slot := tier.find(digest)) is not None]
            if not found:
                break  # it has been evicted
            places.append(found[0])
        load = self._loads[uid] = _Load(uid, pages, digests, places)
        self._reader.submit(self._read, load)

    def cancel(self, uid: int) -> None:
        load = self._loads.pop(uid, None)
        if load is not None:
            load.is_over = True

    def pop_loaded(self) -> list[tuple[int, int, bool]]:
        loaded: dict[int, tuple[int, int, bool]] = {}
        while self._reads:
            read = self._reads.popleft()
            self._reads_ahead.release()
            load = read.load
            if not load.is_over:
                self._take(read)
                load.is_over = len(read.rows) > read.num_good or load.num_loaded == len(load.places)
                if load.is_over:
                    del self._loads[load.uid]
                loaded[load.uid] = load.uid, load.num_loaded, load.is_over
        return list(loaded.values())

    def sizes(self) -> dict[str, int]:
        self._record_written()
        return {tier.name: tier.num_pages for tier in self._tiers}

    def settle(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        with suppress(TimeoutError):
            self._writer.submit(int).result(max(0.0, timeout_s))
        self._record_written()
        return not self._num_queued and (self.states is None or self.states.settle(deadline_s - time.monotonic()))

    def clear(self) -> None:
        for tier in self._tiers:
            tier.clear()
        if self.states is not None:
            self.states.clear()

    def gauges(self) -> dict[str, float]:
        self._record_written()
        gauges = {"tier_dropped_pages": float(self.num_dropped)}
        for tier in self._tiers:
            gauges |= tier.gauges()
        states = {} if self.states is None else self.states.gauges()
        for key, value in states.items():
            if key.endswith("pages"):
                gauges[key.replace("pages", "states")] = value
            elif not key.endswith("per_s"):
                gauges[key] += value
        return gauges

    def close(self) -> None:
        """Ends the threads and closes the tiers; pages waiting to be written are dropped."""
        if self.states is not None:
            self.states.close()
        for load in self._loads.values():
            load.is_over = True
        self._reads_ahead.release(NUM_READS_AHEAD)
        for executor in (self._reader, self._writer):
            executor.shutdown(cancel_futures=True)
        self._record_written()
        for tier in self._tiers:
            tier.close()

    def _plan(self, digest: bytes, row: int) -> list[_Move]:
        """Returns the move of a row into the first tier, after the moves of evicted pages into the next tiers."""
        first, *below = self._tiers
        placed = first.place(digest)
        if placed is None:
            self.num_dropped += 1
            return []
        slot, victim = placed
        moves: list[_Move] = []
        if victim is not None and below and not below[0].has(victim):
            place = below[0].place(victim)
            if place is not None:
                moves.append(_Move(below[0], place[0], victim, -1, first, slot))
        return [*moves, _Move(first, slot, digest, row)]

    def _write(self, fetched: Fetched, moves: Sequence[_Move], num_pages: int, put_s: float) -> None:
        """Runs in the writing thread. `put_s` is the time that the main thread has spent."""
        begin_s = time.thread_time()
        done: list[tuple[_Move, OSError | None]] = []
        try:
            (rows,) = fetched.wait()
            assert isinstance(rows, Tensor)
            memory = rows.numpy()
            for run in _runs(moves):
                error, (tier, slot, digest, _, above, slot_above) = None, run[0]
                try:
                    if above is None:
                        pages = [memory[move.row].data for move in run]
                    else:
                        pages = [self._copies.allocate_host(1).numpy()[0].data]
                        if not above.file.read(slot_above, [digest], pages):
                            raise OSError(errno.EBADMSG, "its checksum is wrong")
                    tier.write(slot, [move.digest for move in run], pages)
                except OSError as caught:
                    error = caught
                done += [(move, error) for move in run]
            self._copies.release(rows)
        finally:
            written_s = 0.0 if self._copies.has_own_processor else time.thread_time() - begin_s
            # A put of one page is mostly overhead, so times are not averaged per put.
            self._put_s = PUT_DECAY * self._put_s + put_s + written_s
            self._num_put = PUT_DECAY * self._num_put + num_pages
            self.page_put_s = self._put_s / self._num_put
            self._written.append((num_pages, done))

    def _record_written(self) -> None:
        while self._written:
            num_pages, done = self._written.popleft()
            self._num_queued -= num_pages
            for move, error in done:
                move.tier.record_written(move.slot, move.digest, error)
                if error is not None:
                    self._warn(f"writing to {move.tier.name} failed ({error.strerror}); it grows no more")

    def _read(self, load: _Load) -> None:
        """Runs in the reading thread."""
        for start in range(0, max(1, len(load.places)), self._read_pages):
            if not self._reads_ahead.acquire(timeout=READER_PATIENCE_S) or load.is_over:
                return
            places = load.places[start : start + self._read_pages]
            rows = self._copies.allocate_host(len(places))
            num_good = self._read_rows(rows, places, load.digests[start : start + len(places)])
            self._reads.append(_Read(load, rows, num_good))
            self.wake()
            if num_good < len(places):
                return

    def _read_rows(self, rows: Tensor, places: Sequence[tuple[Tier, int]], digests: Sequence[bytes]) -> int:
        """Returns the number of pages read: all, or those before the first that cannot be read."""
        memory = rows.numpy()
        start = 0
        while start < len(places):
            end = _run_end(places, start)
            tier, slot = places[start]
            self._reading_since_s = begin_s = time.monotonic()
            reason, num_good = "its checksum is wrong", 0
            try:
                pages = [memory[row].data for row in range(start, end)]
                num_good = tier.file.read(slot, digests[start:end], pages)
            except OSError as error:
                reason = str(error.strerror)
            finally:
                self._reading_since_s = 0.0
            if num_good < end - start:
                self._warn(f"a page of {tier.name} cannot be used ({reason}); it is computed again")
                return start + num_good
            tier.record_read(num_good, time.monotonic() - begin_s)
            start = end
        return start

    def _take(self, read: _Read) -> None:
        """Copies the pages that were read into the cache, and forgets the page that could not be read."""
        load, start = read.load, read.load.num_loaded
        load.num_loaded += read.num_good
        if read.num_good:
            self._copies.copy_in(load.pages[start : load.num_loaded], read.rows[: read.num_good])
        for tier, _ in load.places[start : load.num_loaded]:
            tier.num_hit_pages += 1
        if read.num_good < len(read.rows):
            load.places[load.num_loaded][0].drop(load.digests[load.num_loaded])

    def _warn(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARN_EVERY_S or not self._warned_s:
            self._warned_s = now_s
            log.warning("%s", text)


def _runs(moves: Sequence[_Move]) -> Iterator[list[_Move]]:
    """Yields the moves in order: moves of evicted pages to consecutive slots together, others alone."""
    run: list[_Move] = []
    for move in moves:
        is_next = run and move[:2] == (run[-1].tier, run[-1].slot + 1) and move.above is run[-1].above is None
        if run and not (is_next and len(run) < MAX_WRITTEN_AT_ONCE):
            yield run
            run = []
        run.append(move)
    if run:
        yield run


def _run_end(places: Sequence[tuple[Tier, int]], start: int) -> int:
    """Returns the end of the consecutive slots from `start` on, which are read with one system call."""
    tier, slot = places[start]
    end = start + 1
    while end < min(len(places), start + MAX_AT_ONCE) and places[end] == (tier, slot + end - start):
        end += 1
    return end
