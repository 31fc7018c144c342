"""Draft tokens of a small model: which of its tokens are in its KV cache, and the steps in which it proposes more.

It samples as the model does: with the same parameters, logits processing and noise, which is a function of seed and
position. Where both have the same likeliest tokens they therefore choose the same one, also at a temperature.

It reads and writes its KV cache by the page tables of the model's, whose pages have the same numbers. Those of
`BlockAllocator.draft_pages` hold the K and V of the draft model, too. What a row lacks is computed before it gets draft
tokens, however it came to lack it: its prompt, tokens of steps in which drafting did not pay, a cached prefix that was
never drafted from, a scheduler that was replaced. No output depends on it.
"""

import logging
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress

import msgspec

from messages.columns import INT32, unpack_int32
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.batch_columns import BatchBuilder, Chunk
from scheduler_proc.deciding.drafting.step_cost import StepCost
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Req
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.rows.wanted import Wanted

MOST_LACKING = 8
"""A row that lacks no more tokens than this feeds them in the first step that proposes; else in a step before."""

log = logging.getLogger("sluice.draft_model")


class DraftLimits(msgspec.Struct, frozen=True):
    """What the draft model allows: draft tokens of a row, tokens of a request, and its vocabulary beside the model's.

    Of two vocabularies that differ in size, the larger one is padded: ids that both have mean the same.
    """

    max_drafts: int
    max_len: int
    vocab_size: int
    model_vocab_size: int


class DraftModel:
    """Proposes tokens for all rows of a step together, one step of the draft model after another.

    `run` computes a step. Once one has raised there are no more: rows go on without draft tokens. `cost` is what steps
    take by their tokens, all around them included, `seconds` what the latest call of `propose` took in all.
    """

    def __init__(
        self,
        run: Callable[[Batch], ForwardOutput],
        builder: BatchBuilder,
        cache: BlockAllocator,
        limits: DraftLimits,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.cost = StepCost()
        self.seconds = 0.0
        self.limits = limits
        self.has_failed = False
        self._run = run
        self._builder = builder
        self._cache = cache
        self._clock = clock

    def propose(self, rows: DecodeRows, counts: Sequence[int], max_tokens: int) -> Mapping[int, "array[int]"]:
        """Returns draft tokens (int32) by uid: at most `counts` (at least 1) of each row, which has pages for them.

        A row may have none: where it lacks more tokens than are left of `max_tokens`, these are computed first, in this
        call and the next ones.
        """
        begin_s = self._clock()
        try:
            return self._propose(rows, counts, max_tokens)
        except Exception:
            self.has_failed = True
            log.exception("a step of the draft model failed; requests go on without draft tokens")
            return {}
        finally:
            self.seconds = self._clock() - begin_s

    def _propose(self, rows: DecodeRows, counts: Sequence[int], max_tokens: int) -> Mapping[int, "array[int]"]:
        for req in rows.reqs:
            self._note(req, self._find_known(req))
        self._catch_up(rows, max_tokens)
        begin_s = self._clock()
        is_ready = [self._is_ready(req) for req in rows.reqs]
        reqs, rows = list(compress(rows.reqs, is_ready)), rows.kept(is_ready)
        rows.reqs = [req.twin(req.token_ids[:]) for req in reqs]
        left = dict(zip((req.uid for req in reqs), compress(counts, is_ready), strict=True))
        drafts: dict[int, array[int]] = {req.uid: array(INT32) for req in reqs}
        lacking, num_steps, num_fed = [self._lacking(req) for req in reqs], 0, 0
        while rows.reqs:
            num_steps, num_fed = num_steps + 1, num_fed + sum(lacking)
            tokens = self._sample(rows, lacking)
            for req, token_id in zip(rows.reqs, tokens, strict=True):
                if 0 <= token_id < self.limits.model_vocab_size:
                    drafts[req.uid].append(token_id)
                    left[req.uid] -= 1
                else:
                    left[req.uid] = 0
            is_kept = [left[req.uid] > 0 for req in rows.reqs]
            rows, tokens = _keep(rows, is_kept), array(INT32, compress(tokens, is_kept))
            ended = {row for row, _ in rows.advance(tokens)}
            rows = _keep(rows, [row not in ended for row in range(len(rows))])
            rows.enter_pages()
            lacking = [1] * len(rows)
        for req in reqs:
            self._note(req, len(req.token_ids))
            req.drafted_ids = drafts[req.uid][:-1]
        if num_steps:
            self.cost.add(num_fed / num_steps, (self._clock() - begin_s) / num_steps)
        return drafts

    def _find_known(self, req: Req) -> int:
        """Returns how many tokens of a row, the last one not among them, have K and V of the draft model."""
        behind = req.token_ids[req.num_drafted : req.num_drafted + len(req.drafted_ids)]
        right = [token_id == draft_id for token_id, draft_id in zip(behind, req.drafted_ids, strict=False)]
        known = req.num_drafted + (right.index(False) if False in right else len(right))
        size, pages = self._cache.page_size, self._cache.draft_pages
        index = known // size
        while index < len(req.pages) and req.pages[index] in pages:
            index += 1
            known = index * size
        return min(known, len(req.token_ids) - 1)

    def _note(self, req: Req, num_tokens: int) -> None:
        """From now on the first `num_tokens` of a row have K and V of the draft model."""
        size = self._cache.page_size
        self._cache.draft_pages.update(req.pages[req.num_drafted // size : num_tokens // size])
        req.num_drafted, req.drafted_ids = num_tokens, array(INT32)

    def _lacking(self, req: Req) -> int:
        return len(req.token_ids) - req.num_drafted

    def _has_all_ids(self, req: Req) -> bool:
        vocab_size = self.limits.vocab_size
        if vocab_size >= self.limits.model_vocab_size:
            return True
        return max(req.token_ids[req.num_drafted :]) < vocab_size

    def _is_ready(self, req: Req) -> bool:
        """Tells whether a row can have draft tokens now: it lacks few tokens, and none in a page that others read."""
        has_few = self._lacking(req) <= MOST_LACKING and req.num_drafted >= req.num_shared_pages * self._cache.page_size
        return has_few and self._has_all_ids(req)

    def _catch_up(self, rows: DecodeRows, max_tokens: int) -> None:
        """Computes what rows that are not ready lack, but for their last token; of rows that share pages one computes
        them."""
        chunks: list[Chunk] = []
        pages: set[int] = set()
        for req in rows.reqs:
            num_tokens = min(self._lacking(req) - 1, max_tokens)
            page = req.pages[req.num_drafted // self._cache.page_size]
            if num_tokens and page not in pages and not self._is_ready(req) and self._has_all_ids(req):
                chunks.append(Chunk(req, req.num_drafted, req.num_drafted + num_tokens, Wanted()))
                max_tokens -= num_tokens
                pages.update(req.pages)
        if chunks:
            self._run(self._build(rows.kept([False] * len(rows)), chunks))
        for chunk in chunks:
            self._note(chunk.req, chunk.end)

    def _sample(self, rows: DecodeRows, lacking: Sequence[int]) -> "array[int]":
        """Returns a next token for each row, -1 for none. Each feeds as many of its last tokens as it lacks."""
        alone = _keep(rows, [count == 1 for count in lacking])
        chunks = [_feed(req, count) for req, count in zip(rows.reqs, lacking, strict=True) if count > 1]
        sampled = unpack_int32(self._run(self._build(alone, chunks)).next_tokens)
        firsts, others = iter(sampled[: len(alone)]), _last_of_each(sampled[len(alone) :], chunks)
        return array(INT32, [next(firsts if count == 1 else others) for count in lacking])

    def _build(self, rows: DecodeRows, chunks: list[Chunk]) -> Batch:
        batch = self._builder.build(0, rows, chunks)
        processing = batch.logits_processing if self.limits.vocab_size == self.limits.model_vocab_size else None
        return msgspec.structs.replace(batch, num_logprobs=b"", logits_processing=processing)


def _keep(rows: DecodeRows, is_kept: list[bool]) -> DecodeRows:
    return rows if all(is_kept) else rows.kept(is_kept)


def _feed(req: Req, count: int) -> Chunk:
    """Returns a row that feeds the last `count` tokens of `req` and samples after each, for a step of decode rows is
    quicker than one with a prompt's chunk. All but the last of these samples are known."""
    start = len(req.token_ids) - count
    first = req.twin(req.token_ids[: start + 1])
    return Chunk(first, start, start + 1, Wanted(count), req.token_ids[start + 1 :])


def _last_of_each(sampled: "array[int]", chunks: Sequence[Chunk]) -> Iterator[int]:
    end = 0
    for chunk in chunks:
        end += chunk.wanted.num_tokens
        yield sampled[end - 1]
