"""Reports of plans for timelines: the prompts in each step, and what every other request waits for."""

from collections.abc import Sequence

from messages.ring.timeline import ChunkRow, QueueFacts, ScheduleReport, WaitingRow
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import Chunk
from scheduler_proc.deciding.policy import Policy
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.stages import Stages

REFRESH_NS = 1_000_000_000
"""The report covers all waiting requests again after this time; new ones are reported at once."""


class ScheduleReports:
    """Makes the report of each plan. A step of decode rows alone needs none."""

    def __init__(self, stages: Stages, cache: BlockAllocator, policy: Policy):
        self._stages = stages
        self._cache = cache
        self._policy = policy
        self._refreshed_ns = 0

    def make(self, step_id: int, chunks: Sequence[Chunk]) -> list[ScheduleReport]:
        """Returns the report of the latest plan, for step `step_id`, if it needs one.

        `chunks` are its rows other than decode rows.
        """
        notes, waiting = self._policy.notes, self._stages.waiting
        is_refresh = bool(waiting or notes.delayed) and notes.planned_ns - self._refreshed_ns >= REFRESH_NS
        new = waiting.pop_new()
        in_prefill = [chunk for chunk in chunks if chunk.req.state is State.PREFILL]
        if not (is_refresh or new or in_prefill or notes.preempted or notes.paused):
            return []
        if is_refresh:
            self._refreshed_ns = notes.planned_ns
            rows = self._all_rows()
        else:
            rows = [self._new_row(pending) for pending in new]
        report = ScheduleReport(
            planned_ns=notes.planned_ns,
            facts=self._facts(),
            chunks=tuple([_chunk_row(chunk) for chunk in in_prefill]),
            waiting=tuple(rows),
            delayed=tuple(notes.delayed),
            preempted=tuple(notes.preempted),
            step_id=step_id,
            paused=tuple(notes.paused),
        )
        return [report]

    def _facts(self) -> QueueFacts:
        notes, stages, cache, policy = self._policy.notes, self._stages, self._cache, self._policy
        return QueueFacts(
            waits_for=notes.waits_for,
            num_waiting=len(stages.waiting),
            num_running=len(stages.running),
            max_num_seqs=policy.budget.max_num_seqs,
            num_step_tokens=notes.num_step_tokens,
            max_num_batched_tokens=policy.budget.max_num_batched_tokens,
            num_free_pages=cache.num_free,
            num_evictable_pages=cache.num_available - cache.num_free,
            num_needed_pages=notes.num_needed_pages,
            num_promised_pages=notes.num_promised_pages,
            admitted_per_s=policy.admission_rate.per_s(notes.planned_ns),
        )

    def _all_rows(self) -> list[WaitingRow]:
        """Returns all waiting requests in their order, as far as is known now."""
        stages, order = self._stages, self._policy.shares.order
        num_tokens = sum([len(req.token_ids) - req.num_computed_tokens for req in stages.prefilling])
        rows: list[WaitingRow] = []
        clients: set[str] = set()
        for pending in stages.waiting.in_turn(order) if order else stages.waiting:
            num_clients = len(clients) - (pending.client in clients)
            rows.append(self._waiting_row(pending, len(rows), num_tokens, num_clients))
            clients.add(pending.client)
            num_tokens += len(pending.token_ids)
        return rows

    def _new_row(self, pending: PendingReq) -> WaitingRow:
        waiting, priority = self._stages.waiting, pending.sampling_params.priority
        others = {client for client, least in waiting.lines if client != pending.client and least <= priority}
        return self._waiting_row(pending, waiting.rank(pending), -1, len(others))

    def _waiting_row(self, pending: PendingReq, num_before: int, num_tokens: int, num_clients: int) -> WaitingRow:
        num_pages = -(-len(pending.token_ids) // self._cache.page_size)
        return WaitingRow(
            pending.uid,
            pending.attempt,
            pending.queued_ns,
            num_before,
            num_pages,
            num_tokens,
            num_clients,
            self._policy.find_wait(pending),
        )


def _chunk_row(chunk: Chunk) -> ChunkRow:
    req, pending = chunk.req, chunk.req.pending
    return ChunkRow(req.uid, pending.attempt, pending.queued_ns, chunk.start, chunk.end, len(req.token_ids))
