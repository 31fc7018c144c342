"""A step whose result is not known yet: which rows it has, what may be planned behind it, and what of it still counts.

The scheduler's state is that of its last commit, whatever runs. A step is planned behind one in flight from that state
and from what is certain of the other: each of its rows gets one token more, which only the device knows, and each chunk
is computed. Rows that the step in flight does not have stay as they are. To forget a step that was planned is therefore
no more than that; pages that were taken for it are used later.

A row may end with a token of the step in flight, or be aborted meanwhile: the step behind computes it all the same, and
its result is left out. Its pages are free by then, and the step behind still writes the last slot; but whoever gets
that page writes it in a later step yet, and the radix tree never gets a page with a slot beyond what is committed.
"""

from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.rows.batch_columns import Chunk
from scheduler_proc.deciding.rows.decode_rows import NO_SOURCE, DecodeRows
from scheduler_proc.deciding.stages import Stages


class MustCommitError(Exception):
    """The next step cannot be planned before the one in flight is committed."""


class StepInFlight:
    """The rows of a step as they were planned. The first are those in `decode_reqs`, then come the `chunks`."""

    def __init__(self, decode_reqs: list[Req], chunks: list[Chunk], stages: Stages):
        self.decode_reqs = decode_reqs[:]
        self.chunks = chunks
        self._stages = stages
        self._num_left = stages.num_left

    @property
    def all_run(self) -> bool:
        """Tells whether no row at all has been given up since the step was planned."""
        return self._stages.num_left == self._num_left

    def runs(self, req: Req) -> bool:
        """Tells whether a row of this step still is that of a running request."""
        return self._stages.running.get(req.uid) is req

    def rows_behind(self) -> DecodeRows:
        """Returns the rows in DECODE that the next step has, but for those that will then have all their tokens.

        A row sits out where its next token depends on which one it gets in this step by more than K and V. It is in the
        step after that one, which knows the token. Raises `MustCommitError` where no more rows go on than sit out: they
        would fall into two groups that take turns for good, with a token every second step.
        """
        sampling = [*self.decode_reqs, *(chunk.req for chunk in self.chunks if chunk.wanted.num_tokens)]
        sources = {req.uid: index for index, req in enumerate(sampling)}
        rows = self._stages.decode.advanced(sources)
        for chunk in self.chunks:
            if chunk.wanted.num_tokens and self.runs(chunk.req):
                rows.append(chunk.req, sources[chunk.req.uid])
        for req in rows.full_reqs():
            rows.remove(req)
        return _without_dependent_rows(rows) if rows.sampling.num_that_change_logits else rows

    def chunks_in_work(self) -> list[Chunk]:
        """Returns the chunks whose requests still run."""
        return [chunk for chunk in self.chunks if self.runs(chunk.req)]


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
