"""A step that is being planned: its chunks, and the pages that they compute."""

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from scheduler_proc.deciding.chunk_times import ChunkTimes
from scheduler_proc.deciding.in_flight import StepInFlight
from scheduler_proc.deciding.pages.block_allocator import PageKey
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.requests import Flow, Group, PendingReq
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.tasks.pooling import chunking_of


class Budget(msgspec.Struct, frozen=True):
    """The limits of one step: rows, and tokens of all rows together.

    While other requests have rows, every `yields_every`-th step has at most `max_num_yielding` tokens of requests that
    give way, rows in DECODE first, then prompts; the other steps have none.

    `num_stages` steps may be in flight: the stages of a pipeline, 1 without one.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_yielding: int = 1
    yields_every: int = 1
    num_stages: int = 1


class StepPlan:
    """A step with these decode `rows`. Nothing is preempted if it is planned behind steps in flight.

    `ends_in_flight` is how far those steps compute each of their prompts, by uid.
    """

    def __init__(
        self,
        rows: DecodeRows,
        num_tokens_left: int,
        num_yielding_left: int,
        in_flight: Sequence[StepInFlight],
        chunk_times: ChunkTimes,
    ):
        self.rows = rows
        self.num_tokens_left = num_tokens_left
        self.num_left_over = 0
        """Further tokens, only for a prompt that must be computed in one step, as its first."""
        self.num_yielding_left = num_yielding_left
        """The part of `num_tokens_left` for requests that give way."""
        self.may_preempt = not in_flight
        self.chunks: list[Chunk] = []
        self.planned: set[int] = set()
        """The uids of the prompts that have a chunk in this step, or must wait for a later one."""
        self.passed: Req | None = None
        """Only prompts of other groups that are much shorter than this one are planned now."""
        self.turn: Flow | None = None
        """Only prompts of this flow are planned now, if clients share the step."""
        self.is_blocked = False
        """A client without rows cannot be admitted."""
        self.may_admit = True
        self.skipped: set[Group] = set()
        """Groups of which no request can be admitted now."""
        self.pages_in_work: dict[PageKey, int] = {}
        """The uid of the request that computes each page."""
        self.in_flight = [chunk for step in in_flight for chunk in step.chunks_in_work()] if in_flight else []
        self.ends_in_flight = {chunk.req.uid: chunk.end for chunk in self.in_flight}
        self._chunk_times = chunk_times

    def chunks_in_work(self) -> Iterable[Chunk]:
        """Returns the chunks of the steps in flight, and those of this one so far."""
        return chain(self.in_flight, self.chunks)

    def forget(self, req: Req) -> None:
        """Takes the row of a request that was preempted out of the plan: its chunk with its pages and its tokens."""
        if req in self.rows.reqs:
            self.rows.remove(req)
        for chunk in [chunk for chunk in self.chunks if chunk.req is req]:
            self.num_tokens_left += chunk.end - chunk.start
            self.num_yielding_left += (chunk.end - chunk.start) * req.pending.gives_way
            self.chunks = [other for other in self.chunks if other is not chunk]
            self.pages_in_work = {key: uid for key, uid in self.pages_in_work.items() if uid != req.uid}

    def find_end(self, req: Req, start: int, num_tokens: int, resources: Iterable[Resource]) -> int:
        """Returns where a prompt's chunk of at most `num_tokens` ends: not between tokens that belong together."""
        if self._chunk_times.growth:
            num_tokens = self._chunk_times.limit(start, num_tokens)
        is_whole = chunking_of(req.pending.sampling_params) == "none"
        end = len(req.token_ids) if is_whole else min(start + num_tokens, len(req.token_ids))
        found = (resource.find_whole(req, end) for resource in resources)
        whole = next((whole for whole in found if whole is not None), None)
        if whole is None:
            return end
        num_left = self.num_tokens_left + (0 if self.chunks else self.num_left_over)
        return whole.stop if whole.start <= start and whole.stop - start <= num_left else whole.start

    def count_missing(self, req: Req) -> int:
        """Returns the number of tokens of a prompt that no step computes so far."""
        return len(req.token_ids) - self.ends_in_flight.get(req.uid, req.num_computed_tokens)

    def may_pass(self, pending: PendingReq, num_tokens: int) -> bool:
        """True unless its group is skipped, or its prompt of `num_tokens` is too long to pass the first."""
        passed = self.passed
        if passed is None or pending.group in self.skipped:
            return pending.group not in self.skipped
        is_before = pending.sampling_params.priority <= passed.pending.sampling_params.priority
        is_other = pending.group != passed.pending.group and not pending.gives_way
        return is_before and is_other and num_tokens * 2 <= self.count_missing(passed)

    def fits(self, pending: PendingReq) -> bool:
        """True unless its prompt must be computed in one step, and this one has too few tokens left."""
        is_whole = chunking_of(pending.sampling_params) == "none"
        num_left_over = 0 if self.chunks else self.num_left_over
        return not is_whole or len(pending.token_ids) <= self.num_tokens_left + num_left_over
