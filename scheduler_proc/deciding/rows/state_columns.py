"""Plans where each row of a step finds its recurrent state and where it stores it, and applies the outcome.

A decode row updates its own slot in place. Everything else is a `StateMove`: a prompt's chunk, which begins from
nothing, a checkpoint or its own slot and also stores checkpoints; a row with draft tokens, which stores the state after
each of them in another slot; and a decode row at a page boundary or behind one. A checkpoint is where a page ends:

- at the last page boundary that the next turn of a conversation is likely to share, for that and for the same prompt;
- where a prompt leaves the cached text, for others that begin like both;
- every `StateSlots.interval` pages of a long prompt;
- at the latest page boundary of an output.

None is required: without a free or evictable slot it is left out.
"""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from messages.columns import INT32
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import NO_STATE, Req
from scheduler_proc.deciding.rows.batch_columns import Chunk
from scheduler_proc.deciding.rows.decode_rows import DecodeRows

REWRITTEN_TOKENS = 8
"""The number of tokens at the end of a prompt that the next turn may not have: many templates of reasoning models begin
the answer with `<think>` and newlines, and leave these out of earlier turns."""


class StateMove(NamedTuple):
    """A row that stores its state after these numbers of tokens (ascending) in these slots.

    `allocated` are those of the slots that are neither the request's own nor its spare one. After the `likely` numbers
    of tokens of a prompt others may continue. It is `None` for a row in DECODE, whose checkpoint replaces the former.
    """

    stores: Sequence[tuple[int, int]]
    allocated: list[int]
    likely: Collection[int] | None = None


class StatePlan(NamedTuple):
    """The columns of a step, as in `Batch`, and the rows that do not update their own slot in place."""

    sources: "array[int]"
    slots: "array[int]"
    moves: Mapping[Req, StateMove]

    def columns(self) -> dict[str, bytes]:
        return {"state_sources": self.sources.tobytes(), "state_slots": self.slots.tobytes()}

    def overwrites(self, req: Req) -> bool:
        """True if this step, in which `req` has a row, stores to the slot from which the request would begin again."""
        move = self.moves.get(req)
        stored = [req.state_slot] if move is None else [slot for _, slot in move.stores]
        return req.state_source != NO_STATE and req.state_source in stored


class StatePlanner:
    """Plans the states of steps. Its plans are committed or forgotten in their order."""

    def __init__(self, cache: BlockAllocator):
        assert cache.states is not None
        self._cache = cache
        self._slots = cache.states
        self._page_size = cache.page_size
        self._is_sharing = cache.is_sharing

    def plan(self, decode: DecodeRows, chunks: Sequence[Chunk], before: StatePlan | None) -> StatePlan:
        """Returns the plan of a step, behind the one in flight if there is one. Draft tokens must have slots."""
        latest = {} if before is None else {req: move.stores[-1][1] for req, move in before.moves.items()}
        drafts = {chunk.req: [self._slots.allocate() for _ in chunk.draft_ids] for chunk in chunks if chunk.draft_ids}
        moves: dict[Req, StateMove] = {}
        sources = array(INT32, [latest.get(req, req.state_source) for req in decode.reqs])
        slots = array(INT32, [req.state_slot for req in decode.reqs])
        for row, (context_len, source) in enumerate(zip(decode.context_lens, sources, strict=True)):
            if source != slots[row] or not (context_len + 1) % self._page_size:
                req, num_tokens = decode.reqs[row], context_len + 1
                slots[row], allocated = self._slot_in_decode(req, num_tokens)
                moves[req] = StateMove([(num_tokens, slots[row])], allocated)
        for chunk in chunks:
            req = chunk.req
            source = latest.get(req, req.state_source)
            move = self._move_draft(chunk, drafts[req]) if req in drafts else self._move_prompt(chunk, source)
            moves[req] = move
            stored = array(INT32, [NO_STATE]) * (move.stores[-1][0] - chunk.start)
            for num_tokens, slot in move.stores:
                stored[num_tokens - chunk.start - 1] = slot
            sources.append(source)
            slots += stored
        return StatePlan(sources, slots, moves)

    def commit(self, plan: StatePlan, runs: Callable[[Req], bool]) -> list[Req]:
        """Applies a plan whose step has ended, for the requests that still run, after the results of the step.

        Returns those that got fewer tokens than were computed, so that their state is lost.
        """
        lost = [req for req, move in plan.moves.items() if runs(req) and not self._advance(req, move)]
        self.forget(plan)
        return lost

    def forget(self, plan: StatePlan) -> None:
        """Frees the slots of a plan that no request has got."""
        for move in plan.moves.values():
            self._slots.free(move.allocated)
            move.allocated.clear()

    def _slot_in_decode(self, req: Req, num_tokens: int) -> tuple[int, list[int]]:
        """Returns the slot for the state after `num_tokens`: that of a checkpoint if they end a page, else its own."""
        slot = None
        if self._is_sharing and not num_tokens % self._page_size:
            slot = self._slots.allocate_for_checkpoint(req.rolling_page)
        return (req.state_slot, []) if slot is None else (slot, [slot])

    def _move_draft(self, chunk: Chunk, slots: list[int]) -> StateMove:
        first, allocated = self._slot_in_decode(chunk.req, chunk.end)
        return StateMove(list(enumerate([first, *slots], chunk.end)), allocated + slots)

    def _move_prompt(self, chunk: Chunk, source: int) -> StateMove:
        req, stores = chunk.req, list[tuple[int, int]]()
        likely = [place * self._page_size for place in likely_places(req, self._page_size)]
        for num_tokens in self._places(chunk):
            slot = self._slots.allocate_for_checkpoint(is_likely=num_tokens in likely)
            if slot is not None:
                stores.insert(0, (num_tokens, slot))
        allocated = [slot for _, slot in stores]
        if not stores or stores[-1][0] < chunk.end:
            has_spare = source == req.state_slot and req.spare_slot != NO_STATE
            stores.append((chunk.end, req.spare_slot if has_spare else req.state_slot))
        return StateMove(stores, allocated, likely)

    def _places(self, chunk: Chunk) -> Sequence[int]:
        """Returns after which tokens of a prompt's chunk a checkpoint is wanted, the last ones first."""
        if not self._is_sharing:
            return ()
        size, interval = self._page_size, self._slots.interval
        first, end = chunk.start // size + 1, chunk.end // size + 1
        pages = set(range(-(-first // interval) * interval, end, interval))
        pages.update(place for place in likely_places(chunk.req, size) if first <= place < end)
        return [page * size for page in sorted(pages, reverse=True)]

    def _advance(self, req: Req, move: StateMove) -> bool:
        """Lets `req` continue from the state after its computed tokens, and keeps checkpoints up to there.

        Returns False if the step has not stored that state.
        """
        num_computed, slots = req.num_computed_tokens, self._slots
        stores = [(num_tokens, slot) for num_tokens, slot in move.stores if num_tokens <= num_computed]
        kept = [num_tokens for num_tokens, slot in stores if self._keeps(req, num_tokens, slot, move)]
        is_stored = bool(stores) and stores[-1][0] == num_computed
        if is_stored:
            self._continue_from(req, stores[-1][1], move)
            slots.release(req)
        if kept and move.likely is None:
            pages = [req.pages[num_tokens // self._page_size - 1] for num_tokens in kept]
            for former in (req.rolling_page, *pages[:-1]):
                slots.drop(former)
            req.rolling_page = pages[-1]
        return is_stored

    def _keeps(self, req: Req, num_tokens: int, slot: int, move: StateMove) -> bool:
        """Makes `slot` a checkpoint if one is possible after `num_tokens` and their last page has none."""
        if not self._is_sharing or num_tokens % self._page_size or slot not in move.allocated:
            return False
        is_likely = move.likely is None or num_tokens in move.likely
        is_kept = self._cache.keep_state(req, num_tokens, slot, is_likely=is_likely)
        if is_kept:
            move.allocated.remove(slot)
        return is_kept

    def _continue_from(self, req: Req, slot: int, move: StateMove) -> None:
        """Lets `req` continue from the state after its computed tokens, which the step has stored in `slot`."""
        slots = self._slots
        if slot == req.spare_slot:
            req.state_slot, req.spare_slot = req.spare_slot, req.state_slot
        elif slot != req.state_slot:
            page = None if req.num_computed_tokens % self._page_size else self._last_page(req)
            if page is not None and slots.find_slot(page) is not None:
                slots.use(req, page)
                return
            move.allocated.remove(slot)
            move.allocated.append(req.state_slot)
            req.state_slot = slot
        slots.leave(req)

    def _last_page(self, req: Req) -> int:
        return req.pages[req.num_computed_tokens // self._page_size - 1]


def likely_places(req: Req, page_size: int) -> tuple[int, int]:
    """Returns after which pages of a prompt others are likely to continue: where it left cached text, and its end."""
    return req.num_matched_pages, (len(req.token_ids) - REWRITTEN_TOKENS) // page_size
