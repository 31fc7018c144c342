"""The slots of LoRA adapters on the device, and the adapters in host memory that may be placed in them.

A row that is admitted uses a slot for its adapter until it leaves. One that no row uses loses its slot when another one
needs it, the least recently used first. The digest alone identifies an adapter.

A request whose adapter has no slot, or is still being read, stays in the queue, and others pass it. None starves: one
that was received `PASS_NS` later does not pass a request that only lacks a slot, so the slots in use become free.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.adapters import Adapter
from messages.ring.timeline import WaitsFor
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.resource import Resource, StepRows
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.sampling.endings import Ending

PASS_NS = 2_000_000_000
HOST_ADAPTERS_PER_SLOT = 2

NO_SLOT = -1
NOTHING: Mapping[str, Any] = {}


class AdapterSource(Protocol):
    """Reads adapters outside the main loop, as `scheduler_proc/adapter_reader.py` does."""

    def start(self, adapter: Adapter) -> None:
        """Starts to read an adapter."""

    def pop_read(self) -> Sequence[tuple[Adapter, Any]]:
        """Returns the adapters that have been read since the last call, each with its tensors or an `ErrorInfo`."""
        ...


class AdapterSlots(Resource):
    """Gives out `num_slots` slots. `in_memory`: the tensors of adapters that are there from the start, by digest."""

    name = "adapter_slots"

    def __init__(self, num_slots: int, source: AdapterSource, in_memory: Mapping[str, Any] = NOTHING):
        self.num_slots = num_slots
        self.placements: dict[int, Any] = {}
        """The tensors to place in slots before the next step is launched."""
        self.num_placed = 0
        self._source = source
        self._in_memory = dict(in_memory)
        """The tensors of adapters by digest, the least recently used first."""
        self._reading: set[str] = set()
        self._rows: dict[int, Req] = {}
        """By uid: the rows with an adapter."""
        self._slots: dict[str, int] = {}
        """The slot of each adapter that has one, the least recently used first."""
        self._requested: set[str] = set()
        """The adapters that requests at the front of the queue wait for."""

    @property
    def is_loading(self) -> bool:
        return bool(self._reading)

    def on_admitted(self, req: Req) -> None:
        if req.pending.sampling_params.adapter is not None:
            self._rows[req.uid] = req

    def on_closed(self, req: Req) -> None:
        self._rows.pop(req.uid, None)

    def prepare(self, pending: PendingReq) -> bool:
        """Starts to read the adapter of a new request, unless too many others are in memory.

        Returns True if it has not been read yet.
        """
        adapter = pending.sampling_params.adapter
        if adapter is None or adapter.digest in self._slots or adapter.digest in self._in_memory:
            return False
        has_room = len(self._in_memory) + len(self._reading) < HOST_ADAPTERS_PER_SLOT * self.num_slots
        self._read(pending, adapter, is_requested=has_room)
        return True

    def collect(self, waiting: Iterable[PendingReq], cache: BlockAllocator) -> Sequence[tuple[PendingReq, Ending]]:
        """Keeps what has been read. Returns the waiting requests that end: because of an error, or as they should."""
        ended: list[tuple[PendingReq, Ending]] = []
        for adapter, tensors in self._source.pop_read():
            self._reading.discard(adapter.digest)
            error = tensors if isinstance(tensors, ErrorInfo) else None
            if error is None:
                self._in_memory[adapter.digest] = tensors
                self._evict()
            for pending in waiting:
                own = pending.sampling_params.adapter
                if own is None or own.digest != adapter.digest:
                    continue
                ending = pending.find_ending() if error is None else Ending("error", error=error)
                if ending is not None and (error is None or own.path == adapter.path):
                    ended.append((pending, ending))
        return ended

    def admissible(self, waiting: Iterable[PendingReq]) -> Iterator[PendingReq]:
        """Yields the waiting requests whose adapter has a slot or can get one, and starts to read missing adapters.

        A request that does not give way can get the slot of rows that do.
        """
        in_use = _digests(self._rows.values())
        needed = _digests(req for req in self._rows.values() if not req.pending.gives_way)
        latest_ns: float = float("inf")
        self._requested = in_use - self._slots.keys()
        max_requested = len(self._requested) + self.num_slots
        for pending in waiting:
            adapter = pending.sampling_params.adapter
            if adapter is None:
                yield pending
            elif adapter.digest in in_use:
                if pending.priority_key[0] <= latest_ns:
                    yield pending
            else:
                is_requested = len(self._requested) < max_requested
                if is_requested:
                    self._requested.add(adapter.digest)
                if adapter.digest not in self._in_memory and adapter.digest not in self._slots:
                    self._read(pending, adapter, is_requested=is_requested)
                elif len(in_use if pending.gives_way else needed) < self.num_slots:
                    yield pending
                else:
                    latest_ns = min(latest_ns, pending.priority_key[0] + PASS_NS)

    def num_lacking(self, req: Req, prefilling: Sequence[Req], num_active: int, max_num_tokens: int) -> int:
        """Returns 1 if rows that give way must be preempted for the slot of an admissible request, else at most 0."""
        own = _digests((req,))
        return len(_digests(self._rows.values()) | own) - self.num_slots if own else 0

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Returns the column of the slots of the rows of a step; none if no row has an adapter.

        An adapter without a slot gets one, for which it is placed before the step.
        """
        if not self._rows:
            return {}
        reqs = [*rows.reqs, *[chunk.req for chunk in chunks]]
        adapters = [req.pending.sampling_params.adapter for req in reqs]
        digests = {adapter.digest for adapter in adapters if adapter is not None}
        if not digests:
            return {}
        in_use = _digests(self._rows.values())
        for digest in digests:
            slot = self._slots.pop(digest, None)
            if slot is None:
                slot = self._allocate(in_use)
                tensors = self._in_memory.pop(digest)
                self._in_memory[digest] = self.placements[slot] = tensors
                self.num_placed += 1
            self._slots[digest] = slot
        slots = [NO_SLOT if adapter is None else self._slots[adapter.digest] for adapter in adapters]
        return {"adapter_slots": pack_int32(slots)}

    def find_wait(self, pending: PendingReq) -> WaitsFor | None:
        adapter = pending.sampling_params.adapter
        if adapter is None or adapter.digest in self._slots:
            return None
        return "adapter_slots" if adapter.digest in self._in_memory else "adapter"

    def gauges(self) -> dict[str, float]:
        return {
            "adapters": len(self._in_memory),
            "adapters_reading": len(self._reading),
            "adapters_placed": self.num_placed,
            "adapter_slots_all": self.num_slots,
            "adapter_slots_in_use": len(_digests(self._rows.values())),
        }

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        """Asserts that each row's adapter has a slot and no slot has two."""
        slots = sorted(self._slots.values())
        assert slots == sorted(set(slots) & set(range(self.num_slots))), "a slot is given out twice"
        in_use = _digests(reqs)
        assert in_use == _digests(self._rows.values()), "the rows with adapters are not the running ones"
        assert len(in_use) <= self.num_slots, "rows use more adapters than there are slots"
        assert in_use <= self._slots.keys() | self._in_memory.keys(), "the adapter of a row is nowhere"
        assert len(self._in_memory) <= HOST_ADAPTERS_PER_SLOT * self.num_slots, "too many adapters are in memory"

    def _read(self, pending: PendingReq, adapter: Adapter, *, is_requested: bool) -> None:
        """Starts to read an adapter if a row needs it soon, or the request ends when it has been read."""
        if adapter.digest not in self._reading and (is_requested or pending.find_ending() is not None):
            self._reading.add(adapter.digest)
            self._source.start(adapter)

    def _evict(self) -> None:
        """Drops the least recently used adapters from memory, except those that are wanted."""
        num_left_over = len(self._in_memory) - HOST_ADAPTERS_PER_SLOT * self.num_slots
        evictable = [digest for digest in self._in_memory if digest not in self._requested]
        for digest in evictable[: max(0, num_left_over)]:
            del self._in_memory[digest]

    def _allocate(self, in_use: set[str]) -> int:
        if len(self._slots) < self.num_slots:
            return next(slot for slot in range(self.num_slots) if slot not in self._slots.values())
        return self._slots.pop(next(digest for digest in self._slots if digest not in in_use))


def _digests(reqs: Iterable[Req]) -> set[str]:
    adapters = [req.pending.sampling_params.adapter for req in reqs]
    return {adapter.digest for adapter in adapters if adapter is not None}
