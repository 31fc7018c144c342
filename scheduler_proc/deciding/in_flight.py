"""Steps whose results are not known yet, and the rows of the step planned behind them.

The scheduler's state is always that of its last commit. A step behind one in flight is planned from that state and from
what is certain about the step in flight: each of its rows gets one more token, which only the device knows, and each
chunk is computed. Other rows are unchanged. A planned step can therefore simply be forgotten; pages allocated for it
are used later.

A row may end with a token of the step in flight, or be aborted meanwhile. The step behind still computes it, and its
result is dropped. Its pages are free by then although the step behind writes the last slot. That is safe: the next
owner of the page writes to it in a later step, and the radix tree never gets a page with an uncommitted slot.

The stages of a pipeline compute several steps at once, each stage in the order of launches. A row in DECODE is in one
of them (`row_groups.py`). The chunks of a prompt follow each other, as only the last one's result is needed.
"""

from collections.abc import Iterator

from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.rows.decode_rows import NO_SOURCE, DecodeRows
from scheduler_proc.deciding.stages import Stages


class MustCommitError(Exception):
    """The next step cannot be planned before the one in flight is committed."""


class StepInFlight:
    """The rows of a step as they were planned: first `decode_reqs`, then the `chunks`."""

    def __init__(self, decode_reqs: list[Req], chunks: list[Chunk], stages: Stages):
        self.decode_reqs = decode_reqs[:]
        self.chunks = chunks
        self._stages = stages
        self._num_left = stages.num_left

    @property
    def all_run(self) -> bool:
        """True if no row has ended or been preempted since the step was planned."""
        return self._stages.num_left == self._num_left

    def runs(self, req: Req) -> bool:
        """True if a row of this step still belongs to a running request."""
        return self._stages.runs(req)

    def decoding(self) -> Iterator[Req]:
        """Yields the rows in DECODE of this step, with and without draft tokens; some may have ended."""
        yield from self.decode_reqs
        yield from (chunk.req for chunk in self.chunks if chunk.draft_ids)

    def rows_behind(self) -> DecodeRows:
        """Returns the rows in DECODE of the next step, without those that will have all their tokens by then.

        A row sits out if its logits processing needs the token that it gets in this step; it is in the step after the
        next one. Raises `MustCommitError` unless more rows continue than sit out: otherwise two groups would take turns
        for good, with a token every second step.
        """
        sampling = [*self.decode_reqs, *(chunk.req for chunk in self.chunks if chunk.requested.num_tokens)]
        sources = {req.uid: index for index, req in enumerate(sampling)}
        rows = self._stages.decode.advanced(sources)
        for chunk in self.chunks:
            if chunk.requested.num_tokens and self.runs(chunk.req):
                rows.append(chunk.req, sources[chunk.req.uid])
        for req in rows.full_reqs():
            rows.remove(req)
        return _without_dependent_rows(rows) if rows.sampling.num_that_change_logits else rows

    def chunks_in_work(self) -> list[Chunk]:
        """Returns the chunks of prompts whose requests are still running."""
        return [chunk for chunk in self.chunks if not chunk.draft_ids and self.runs(chunk.req)]


def _without_dependent_rows(rows: DecodeRows) -> DecodeRows:
    is_kept = [
        source == NO_SOURCE or not req.pending.needs_last_token
        for req, source in zip(rows.reqs, rows.future_token_indices, strict=True)
    ]
    num_kept = sum(is_kept)
    if num_kept == len(rows):
        return rows
    if num_kept <= len(rows) - num_kept:
        raise MustCommitError
    return rows.kept(is_kept)
