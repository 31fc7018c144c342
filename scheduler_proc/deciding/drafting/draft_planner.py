"""Chooses the draft tokens of the rows of a step."""

from array import array
from collections.abc import Sequence

from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftLimits, DraftModel
from scheduler_proc.deciding.drafting.draft_state import FORCED, AcceptanceRate, Drafts, DraftSteps
from scheduler_proc.deciding.drafting.drafts import MAX_SPARSE, Draft, Drafter
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Chunk, Records, Req
from scheduler_proc.deciding.pages.state_slots import StateSlots
from scheduler_proc.deciding.rows.batch_columns import plan_drafts
from scheduler_proc.deciding.rows.decode_rows import DecodeRows

NO_CHUNKS: Sequence[Chunk] = ()


class _Known:
    """The speculation of one request. It outlives a preemption.

    `model` is the acceptance rate of the draft model's tokens, `forced` that of tokens that its grammar forces. The
    drafter is not asked while the request has fewer than `idle_until` tokens.
    """

    __slots__ = ("forced", "idle_until", "model")

    def __init__(self) -> None:
        self.model = AcceptanceRate()
        self.forced = AcceptanceRate(FORCED)
        self.idle_until = 0


class DraftPlanner(PageObserver):
    """Gives rows in DECODE the draft tokens that `drafter` proposes, as many as `lengths` choose.

    A draft model proposes in steps that the caller runs: `proposal`, if the latest plan needs any. If the rows of that
    plan need no draft tokens in the next one, it `is_idle`: the next one may be made behind the plan's step.
    """

    def __init__(self, cache: BlockAllocator, drafter: Drafter | DraftModel, lengths: DraftLengths):
        cache.add_observer(self)
        self._cache = cache
        self._slots = cache.find_observer(StateSlots)
        self._known = Records[_Known]()
        self._model, self._drafter = (drafter, None) if isinstance(drafter, DraftModel) else (None, drafter)
        self._lengths = lengths
        self._proposal_s = 0.0
        """The time of the latest plan's proposal."""
        self.proposal: DraftSteps | None = None
        self.is_idle = False
        self._num_idle_plans = self._num_plans = 0
        self._idle_reqs: list[Req] = []
        """The rows of the latest plan; their next `_num_idle_plans` plans need no search."""
        self._chunks: list[Chunk] = []
        self._num_tokens_left = 0
        """The draft tokens that the step may still get."""

    def on_opened(self, req: Req) -> None:
        self._known.setdefault(req.uid, _Known())

    def on_finished(self, uid: int) -> None:
        self._known.pop(uid, None)

    def plan(self, rows: DecodeRows, max_num_tokens: int) -> Sequence[Chunk]:
        """Returns a chunk for each of `rows` that has draft tokens: at most `max_num_tokens`, if there are pages.

        Tokens that a row's grammar forces precede those of the drafter. Each draft token has a recurrent state, if
        layers have any. In its own steps, the draft model computes the rest of `max_num_tokens` at most.

        Rows whose latest tokens are in flight get none: a search of their other tokens decides about the plan after.
        """
        self._num_plans += 1
        if self._num_idle_plans and rows.reqs == self._idle_reqs:
            self._num_idle_plans -= 1
            return NO_CHUNKS  # most steps end here, so it must be cheap
        drafter, slots = self._drafter, self._slots
        draft_limit = max_num_tokens if slots is None else min(max_num_tokens, slots.num_for_drafts)
        proposed: list[tuple[Req, Draft, AcceptanceRate | None]] = []
        num_idle_plans, is_idle = MAX_SPARSE, drafter is not None
        for req, known in zip(rows.reqs, self._known.of(rows.reqs), strict=True):
            pending, num_tokens = req.pending, len(req.token_ids)
            if pending.grammar is None and num_tokens < known.idle_until:
                num_idle_plans = min(num_idle_plans, known.idle_until - num_tokens - 1)
                continue
            limit = min(draft_limit, pending.max_len - num_tokens - 1)
            if limit <= 0:
                num_idle_plans = 0
                continue
            if pending.grammar is not None and (forced_ids := pending.grammar.forced_ids(limit)):
                proposed.append((req, *self._forced(req, forced_ids)))
            elif drafter is not None:
                draft = drafter.propose(req, limit)
                known.idle_until = draft.idle_until
                if draft.idle_until > num_tokens:  # rows that are asked seldom are asked in the same steps
                    known.idle_until -= self._num_plans % (draft.idle_until - num_tokens)
                if draft.token_ids:
                    proposed.append((req, draft, None))
            # A grammar may force tokens in any step.
            is_idle = is_idle and pending.grammar is None and known.idle_until > num_tokens
            num_idle_plans = min(num_idle_plans, known.idle_until - num_tokens - 1)
        self.is_idle, self._idle_reqs = is_idle, rows.reqs[:]
        self._num_idle_plans = num_idle_plans if is_idle else 0
        if rows.future_token_indices or (not proposed and self._model is None):
            return NO_CHUNKS
        self._chunks, self._num_tokens_left, self._proposal_s = [], draft_limit, 0.0
        self._lengths.begin_step(len(rows))
        if proposed:
            self._add(proposed)
        if self._model is not None and not self._model.has_failed:
            self.proposal = self._begin_proposal(self._model, rows, max_num_tokens - draft_limit)
        return self._chunks

    def end_proposal(self, rows: DecodeRows, drafts: Drafts) -> Sequence[Chunk]:
        """Returns the chunks of those of `rows` for which the draft model proposed `drafts`."""
        self.proposal = None
        if self._model is not None:
            self._proposal_s = self._model.seconds
        if drafts:
            self._lengths.num_idle = 0
        known = self._known
        return [plan_drafts(req, drafts[req.uid], known[req.uid].model) for req in rows.reqs if drafts.get(req.uid)]

    def record_time(self, num_tokens: int, seconds: float) -> None:
        """Records the time of the latest plan and its step, in which each row decoded."""
        self._lengths.cost.add(num_tokens, seconds - self._proposal_s)

    def _forced(self, req: Req, token_ids: "array[int]") -> tuple[Draft, AcceptanceRate]:
        rate = self._known[req.uid].forced
        rate.follow(self._lengths.forced)
        return Draft(token_ids, [rate.value] * len(token_ids)), rate

    def _add(self, proposed: list[tuple[Req, Draft, AcceptanceRate | None]]) -> None:
        """Plans the rows that get some of their draft tokens."""
        counts = self._lengths.choose([draft.chances for _, draft, _ in proposed], self._num_tokens_left)
        for count, (req, draft, rate) in zip(counts, proposed, strict=True):
            draft_ids = draft.token_ids[: min(count, self._num_tokens_left)]
            if draft_ids and self._cache.grow(req, len(req.token_ids) + len(draft_ids)):
                self._chunks.append(plan_drafts(req, draft_ids, rate))
                self._num_tokens_left -= len(draft_ids)
            elif rate is not None:
                rate.fade()

    def _begin_proposal(self, model: DraftModel, rows: DecodeRows, num_others: int) -> DraftSteps | None:
        """Allocates pages for draft tokens of the rows that have none; returns the steps that propose them.

        These steps may compute `num_others` tokens in addition to those left.
        """
        has_drafts = {chunk.req.uid for chunk in self._chunks}
        most = [0 if req.uid in has_drafts else self._most(model.limits, req) for req in rows.reqs]
        if not any(most):
            return None
        rates = [self._known[req.uid].model for req in rows.reqs]
        for rate in rates:
            rate.follow(self._lengths.general)
        counts = self._lengths.choose_all(rates, most, model.cost)
        for row, req in enumerate(rows.reqs):
            counts[row] = min(counts[row], self._num_tokens_left)
            if counts[row] and not self._cache.grow(req, len(req.token_ids) + counts[row]):
                counts[row] = 0
            self._num_tokens_left -= counts[row]
        if not any(counts):
            return None
        rows = rows.kept([count > 0 for count in counts])
        return model.propose(rows, [count for count in counts if count], self._num_tokens_left + num_others)

    def _most(self, limits: DraftLimits, req: Req) -> int:
        """Returns the maximum number of draft tokens of a row; 0 with a slow grammar, as each needs a bitmask."""
        if req.pending.grammar is not None and req.pending.grammar.is_slow:
            return 0
        num_tokens = len(req.token_ids)
        return max(0, min(limits.max_drafts, req.pending.max_len - num_tokens - 1, limits.max_len - num_tokens + 1))
