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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from messages.columns import INT32
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.resource import Resource, StepRows
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.pages.state_slots import NO_STATE, StateSlots
from scheduler_proc.deciding.requests import State

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
    """A step: its decode rows, and the rows that do not update their own slot in place."""

    decode_reqs: list[Req]
    moves: Mapping[Req, StateMove]


class StatePlanner(Resource):
    """Plans the states of steps. Its plans are committed or forgotten in their order."""

    def __init__(self, cache: BlockAllocator, slots: StateSlots):
        cache.add_observer(self)
        self._cache = cache
        self._slots = slots
        self._page_size = cache.page_size
        self._plans: deque[StatePlan] = deque()
        self._keys: dict[int, list[int]] = {}
        """By uid: a key of each full page of a prompt, which depends on the pages before it."""

    def on_closed(self, req: Req) -> None:
        self._keys.pop(req.uid, None)

    def find_delay(self, req: Req, chunks: Iterable[Chunk], cache: BlockAllocator) -> int | None:
        """Returns the request that computes up to a checkpoint from which `req` can continue."""
        if not cache.is_sharing:
            return None
        first, end, size = req.num_computed_tokens, req.pending.num_reusable_tokens, self._page_size
        for chunk in chunks:
            other = chunk.req
            for place in likely_places(other, size):
                is_ahead = first <= chunk.start < place * size <= end
                if is_ahead and self._key(other, place) == self._key(req, place):
                    return other.uid
        return None

    def _key(self, req: Req, num_pages: int) -> int:
        """Returns what is the same for prompts with the same first pages (at least 1), unless hashes collide.

        Each page of a prompt is hashed once.
        """
        keys, size = self._keys.setdefault(req.uid, []), self._page_size
        for start in range(len(keys) * size, num_pages * size, size):
            page = req.page_key(start, start + size, size)
            keys.append(hash((keys[-1] if keys else req.pending.salt, page)))
        return keys[num_pages - 1]

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Plans a step, behind the one in flight if there is one. Draft tokens must have slots."""
        states = self._slots.rows
        latest = {req: move.stores[-1][1] for plan in self._plans for req, move in plan.moves.items()}
        drafts = {chunk.req: [self._slots.allocate() for _ in chunk.draft_ids] for chunk in chunks if chunk.draft_ids}
        moves: dict[Req, StateMove] = {}
        in_decode = states.of(rows.reqs)
        sources = array(INT32, [state.source for state in in_decode])
        if latest:
            sources = array(INT32, map(latest.get, rows.reqs, sources))
        slots, size = sources[:], self._page_size
        for row, (context_len, source, state) in enumerate(zip(rows.context_lens, sources, in_decode, strict=True)):
            if source != state.own or not (context_len + 1) % size:
                req, num_tokens = rows.reqs[row], context_len + 1
                slots[row], allocated = self._slot_in_decode(req, num_tokens)
                moves[req] = StateMove([(num_tokens, slots[row])], allocated)
        for chunk in chunks:
            req = chunk.req
            source = latest.get(req, states[req.uid].source)
            move = self._move_draft(chunk, drafts[req]) if req in drafts else self._move_prompt(chunk, source)
            moves[req] = move
            stored = array(INT32, [NO_STATE]) * (move.stores[-1][0] - chunk.start)
            for num_tokens, slot in move.stores:
                stored[num_tokens - chunk.start - 1] = slot
            sources.append(source)
            slots += stored
        self._plans.append(StatePlan(rows.reqs[:], moves))
        return {"state_sources": sources.tobytes(), "state_slots": slots.tobytes()}

    def may_plan_behind(self) -> bool:
        """False if a row of a step in flight computes again what a failed step may have left half done."""
        suspects = self._slots.suspects
        return not suspects or all(req.uid not in suspects for plan in self._plans for req in plan.moves)

    def commit(self, runs: Callable[[Req], bool], unfed: Collection[Req]) -> Iterable[Req]:
        """Returns those that got fewer tokens than were computed, so that their state is lost."""
        plan = self._plans.popleft()
        if self._slots.suspects:
            self._slots.suspects.difference_update([req.uid for req in plan.moves if req.state is State.DECODE])
        lost = [req for req, move in plan.moves.items() if runs(req) and not self._advance(req, move)]
        self._free(plan)
        return [*unfed, *lost]

    def forget(self) -> None:
        self._free(self._plans.pop())

    def suspect(self, runs: Callable[[Req], bool]) -> Iterable[Req]:
        """Returns the rows whose state the planned steps may have overwritten.

        Their states are computed again, from the last checkpoint, in steps that overwrite no state they begin from.
        Such a step can be run again in parts if it fails, too.
        """
        reqs = [
            req
            for plan in self._plans
            for req in (*plan.decode_reqs, *plan.moves)
            if runs(req) and self._overwrites(plan, req)
        ]
        self._slots.suspects.update([req.uid for req in reqs])
        return reqs

    def _overwrites(self, plan: StatePlan, req: Req) -> bool:
        """True if a step, in which `req` has a row, stores to the slot from which the request would begin again."""
        move, state = plan.moves.get(req), self._slots.rows[req.uid]
        stored = [state.own] if move is None else [slot for _, slot in move.stores]
        return state.source != NO_STATE and state.source in stored

    def _free(self, plan: StatePlan) -> None:
        """Frees the slots of a plan that no request has got."""
        for move in plan.moves.values():
            self._slots.free(move.allocated)
            move.allocated.clear()

    def _slot_in_decode(self, req: Req, num_tokens: int) -> tuple[int, list[int]]:
        """Returns the slot for the state after `num_tokens`: that of a checkpoint if they end a page, else its own."""
        state = self._slots.rows[req.uid]
        if num_tokens % self._page_size or not self._cache.is_sharing:
            return state.own, []
        slot = self._slots.allocate_for_checkpoint(state.rolling_page)
        return (state.own, []) if slot is None else (slot, [slot])

    def _move_draft(self, chunk: Chunk, slots: list[int]) -> StateMove:
        first, allocated = self._slot_in_decode(chunk.req, chunk.end)
        return StateMove(list(enumerate([first, *slots], chunk.end)), allocated + slots)

    def _move_prompt(self, chunk: Chunk, source: int) -> StateMove:
        req, state, stores = chunk.req, self._slots.rows[chunk.req.uid], list[tuple[int, int]]()
        likely = [place * self._page_size for place in likely_places(req, self._page_size)]
        for num_tokens in self._places(chunk):
            slot = self._slots.allocate_for_checkpoint(is_likely=num_tokens in likely)
            if slot is not None:
                stores.insert(0, (num_tokens, slot))
        allocated = [slot for _, slot in stores]
        if not stores or stores[-1][0] < chunk.end:
            has_spare = source == state.own and state.spare != NO_STATE
            stores.append((chunk.end, state.spare if has_spare else state.own))
        return StateMove(stores, allocated, likely)

    def _places(self, chunk: Chunk) -> Sequence[int]:
        """Returns after which tokens of a prompt's chunk a checkpoint is wanted, the last ones first."""
        if not self._cache.is_sharing:
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
            state = slots.rows[req.uid]
            for former in (state.rolling_page, *pages[:-1]):
                slots.drop(former)
            state.rolling_page = pages[-1]
        return is_stored

    def _keeps(self, req: Req, num_tokens: int, slot: int, move: StateMove) -> bool:
        """Makes `slot` a checkpoint if one is possible after `num_tokens` and their last page has none."""
        if not self._cache.is_sharing or num_tokens % self._page_size or slot not in move.allocated:
            return False
        is_likely = move.likely is None or num_tokens in move.likely
        is_kept = self._slots.keep(req, num_tokens, slot, self._cache, is_likely=is_likely)
        if is_kept:
            move.allocated.remove(slot)
        return is_kept

    def _continue_from(self, req: Req, slot: int, move: StateMove) -> None:
        """Lets `req` continue from the state after its computed tokens, which the step has stored in `slot`."""
        slots, state = self._slots, self._slots.rows[req.uid]
        if slot == state.spare:
            state.own, state.spare = state.spare, state.own
        elif slot != state.own:
            num_pages, num_beyond = divmod(req.num_computed_tokens, self._page_size)
            if not num_beyond and slots.find_slot(page := req.pages[num_pages - 1]) is not None:
                slots.use(req, page)
                return
            move.allocated.remove(slot)
            move.allocated.append(state.own)
            state.own = slot
        slots.stop_using(req)


def likely_places(req: Req, page_size: int) -> tuple[int, int]:
    """Returns after which pages of a prompt others are likely to continue: where it left cached text, and its end."""
    return req.num_matched_pages, (len(req.token_ids) - REWRITTEN_TOKENS) // page_size
