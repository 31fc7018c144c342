"""Draft tokens of a draft model: what its KV cache holds, and the steps in which it proposes tokens.

A head of multi-token prediction (MTP) is a draft model, too; it also reads the model's hidden states.

It samples as the model does: with the same parameters, logits processing and noise, which is a function of seed and
position. If both have the same likeliest tokens they therefore choose the same one, also at a temperature.

It reads and writes its KV cache by the page tables of the model's, whose pages have the same numbers. The pages in
`DraftModel.pages` hold K and V of the draft model, too. K and V that a row lacks are computed before it gets draft
tokens, whatever the reason: a new prompt, steps in which drafting did not pay, a cached prefix that was never drafted
from, a scheduler that was replaced. No output depends on it.
"""

import logging
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

import msgspec

from messages.columns import INT32, unpack_int32
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.drafting.draft_state import NO_IDS, Drafts, DraftSteps
from scheduler_proc.deciding.drafting.mtp_steps import at_places_before
from scheduler_proc.deciding.drafting.step_cost import StepCost
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.pages.span_columns import position_columns
from scheduler_proc.deciding.rows.batch_columns import BatchBuilder
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.sampling.output_counts import OutputCounts

MAX_LACKING = 8
"""A row that lacks at most this many tokens feeds them in the first step that proposes; else in a step before."""

log = logging.getLogger("sluice.draft_model")


def run_draft_steps(steps: DraftSteps, run: Callable[[Batch], ForwardOutput]) -> Drafts:
    """Runs the steps of a proposal; returns the draft tokens."""
    try:
        batch = next(steps)
        while True:
            try:
                output = run(batch)
            except Exception as error:
                batch = steps.throw(error)
            else:
                batch = steps.send(output)
    except StopIteration as end:
        return end.value


class DraftLimits(msgspec.Struct, frozen=True):
    """The limits of the draft model: draft tokens of a row, tokens of a request, and both vocabulary sizes.

    If the vocabularies differ in size, the larger one is padded: ids that both have mean the same. `is_mtp`: it is an
    MTP head, which computes nothing for a request's first token.
    """

    max_drafts: int
    max_len: int
    vocab_size: int
    model_vocab_size: int
    is_mtp: bool = False


class _Known:
    """What the draft model has computed of one request: K and V of the first `num_computed` tokens.

    Then come those of `unverified_ids`, some of which may have been rejected since.
    """

    __slots__ = ("num_computed", "unverified_ids")

    def __init__(self) -> None:
        self.num_computed = 0
        self.unverified_ids = NO_IDS


@dataclass(eq=False)
class DraftModel(PageObserver):
    """Proposes tokens for all rows of a step together, one step of the draft model after another.

    Once a step has failed there are no more, and rows continue without draft tokens. `cost` is the time of steps by
    their number of tokens, with everything around them; `seconds` is the time of the latest proposal.
    """

    _builder: BatchBuilder
    _cache: BlockAllocator
    limits: DraftLimits
    _clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    has_failed: bool = False
    cost: StepCost = field(default_factory=StepCost)
    pages: set[int] = field(default_factory=set[int])
    _known: defaultdict[int, _Known] = field(default_factory=lambda: defaultdict(_Known))
    """By uid, of running requests."""

    def __post_init__(self):
        self._cache.add_observer(self)

    def on_freed(self, pages: Collection[int]) -> None:
        self.pages.difference_update(pages)

    def on_closed(self, req: Req) -> None:
        self._known.pop(req.uid, None)

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        assert self.pages.isdisjoint(free), "a free page has K and V of the draft model"

    def propose(self, rows: DecodeRows, counts: Sequence[int], max_tokens: int) -> DraftSteps:
        """Proposes at most `counts` (at least 1) draft tokens for each row, which has pages for them.

        A row may get none: if it lacks more tokens than are left of `max_tokens`, these are computed first, in this
        proposal and the next ones.
        """
        begin_s = self._clock()
        try:
            return (yield from self._propose(rows, counts, max_tokens))
        except Exception:
            self.has_failed = True
            log.exception("a step of the draft model failed; requests continue without draft tokens")
            return {}
        finally:
            self.seconds = self._clock() - begin_s

    def _propose(self, rows: DecodeRows, counts: Sequence[int], max_tokens: int) -> DraftSteps:
        for req in rows.reqs:
            self._record(req, self._find_known(req))
        yield from self._catch_up(rows, max_tokens)
        begin_s = self._clock()
        is_ready = [self._is_ready(req) for req in rows.reqs]
        reqs, rows = list(compress(rows.reqs, is_ready)), rows.kept(is_ready)
        rows.reqs = [req.twin(req.token_ids[:]) for req in reqs]
        left = dict(zip((req.uid for req in reqs), compress(counts, is_ready), strict=True))
        drafts: dict[int, array[int]] = {req.uid: array(INT32) for req in reqs}
        lacking, num_steps, num_fed = [self._lacking(req) for req in reqs], 0, 0
        while rows.reqs:
            num_steps, num_fed = num_steps + 1, num_fed + sum(lacking)
            tokens = yield from self._sample(rows, lacking)
            for req, token_id in zip(rows.reqs, tokens, strict=True):
                if 0 <= token_id < self.limits.model_vocab_size:
                    drafts[req.uid].append(token_id)
                    left[req.uid] -= 1
                else:
                    left[req.uid] = 0
            is_kept = [left[req.uid] > 0 for req in rows.reqs]
            rows, tokens = _keep(rows, is_kept), array(INT32, compress(tokens, is_kept))
            ended = {row for row, _ in rows.advance(range(len(rows)), tokens)}
            rows = _keep(rows, [row not in ended for row in range(len(rows))])
            rows.enter_pages()
            lacking = [1] * len(rows)
        for req in reqs:
            self._record(req, len(req.token_ids))
            # An MTP head computes draft tokens again when it can read the model's hidden states.
            self._known[req.uid].unverified_ids = NO_IDS if self.limits.is_mtp else drafts[req.uid][:-1]
        if num_steps:
            self.cost.add(num_fed / num_steps, (self._clock() - begin_s) / num_steps)
        return drafts

    def _find_known(self, req: Req) -> int:
        """Returns how many tokens of a row, excluding the last one, have K and V of the draft model."""
        start, draft_ids = self._known[req.uid].num_computed, self._known[req.uid].unverified_ids
        behind = req.token_ids[start : start + len(draft_ids)]
        right = [token_id == draft_id for token_id, draft_id in zip(behind, draft_ids, strict=False)]
        known = start + (right.index(False) if False in right else len(right))
        size = self._cache.page_size
        index = known // size
        while index < len(req.pages) and req.pages[index] in self.pages:
            index += 1
            known = index * size
        return max(int(self.limits.is_mtp), min(known, len(req.token_ids) - 1))

    def _record(self, req: Req, num_tokens: int) -> None:
        """Records that the first `num_tokens` of a row have K and V of the draft model."""
        size, state = self._cache.page_size, self._known[req.uid]
        self.pages.update(req.pages[state.num_computed // size : num_tokens // size])
        state.num_computed, state.unverified_ids = num_tokens, NO_IDS

    def _lacking(self, req: Req) -> int:
        return len(req.token_ids) - self._known[req.uid].num_computed

    def _has_all_ids(self, req: Req) -> bool:
        vocab_size = self.limits.vocab_size
        if vocab_size >= self.limits.model_vocab_size:
            return True
        return max(req.token_ids[self._known[req.uid].num_computed :]) < vocab_size

    def _is_ready(self, req: Req) -> bool:
        """True if a row can get draft tokens now: it lacks few tokens, and none in a page that others read."""
        has_shared = self._known[req.uid].num_computed >= req.num_shared_pages * self._cache.page_size
        return has_shared and self._lacking(req) <= MAX_LACKING and self._has_all_ids(req)

    def _catch_up(self, rows: DecodeRows, max_tokens: int) -> Generator[Batch, ForwardOutput, None]:
        """Computes the tokens that rows lack if they are not ready, except for the last one.

        Pages that rows share are computed by one of them.
        """
        chunks: list[Chunk] = []
        pages: set[int] = set()
        for req in rows.reqs:
            num_tokens = min(self._lacking(req) - 1, max_tokens)
            start = self._known[req.uid].num_computed
            page = req.pages[start // self._cache.page_size]
            if num_tokens and page not in pages and not self._is_ready(req) and self._has_all_ids(req):
                chunks.append(Chunk(req, start, start + num_tokens, OutputCounts()))
                max_tokens -= num_tokens
                pages.update(req.pages)
        if chunks:
            yield self._build(rows.kept([False] * len(rows)), chunks)
        for chunk in chunks:
            self._record(chunk.req, chunk.end)

    def _sample(self, rows: DecodeRows, lacking: Sequence[int]) -> Generator[Batch, ForwardOutput, "array[int]"]:
        """Returns a next token for each row, -1 for none. Each row feeds the tokens that it lacks."""
        alone = _keep(rows, [count == 1 for count in lacking])
        chunks = [_feed(req, count) for req, count in zip(rows.reqs, lacking, strict=True) if count > 1]
        output = yield self._build(alone, chunks)
        sampled = unpack_int32(output.next_tokens)
        firsts, others = iter(sampled[: len(alone)]), _last_of_each(sampled[len(alone) :], chunks)
        return array(INT32, [next(firsts if count == 1 else others) for count in lacking])

    def _build(self, rows: DecodeRows, chunks: list[Chunk]) -> Batch:
        batch = self._builder.build(0, rows, chunks)
        if self.limits.is_mtp:
            batch = at_places_before(batch, self._cache.page_size)
            batch = msgspec.structs.replace(batch, **position_columns(rows, chunks, distance=1))
        processing = batch.logits_processing if self.limits.vocab_size == self.limits.model_vocab_size else None
        return msgspec.structs.replace(batch, num_logprobs=b"", logits_processing=processing)


def _keep(rows: DecodeRows, is_kept: list[bool]) -> DecodeRows:
    return rows if all(is_kept) else rows.kept(is_kept)


def _feed(req: Req, count: int) -> Chunk:
    """Returns a row that feeds the last `count` tokens of `req` and samples after each.

    Such a step is faster than one with a prompt's chunk. Only the last sample is new.
    """
    start = len(req.token_ids) - count
    first = req.twin(req.token_ids[: start + 1])
    return Chunk(first, start, start + 1, OutputCounts(count), req.token_ids[start + 1 :])


def _last_of_each(sampled: "array[int]", chunks: Sequence[Chunk]) -> Iterator[int]:
    end = 0
    for chunk in chunks:
        end += chunk.requested.num_tokens
        yield sampled[end - 1]
