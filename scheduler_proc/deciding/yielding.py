"""How much of the steps requests have that give way to others."""

from collections.abc import Sequence

from messages.ring.timeline import PausedRow
from scheduler_proc.deciding.in_flight import MustCommitError, StepInFlight
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.plan_notes import PlanNotes
from scheduler_proc.deciding.stages import Stages
from scheduler_proc.deciding.step_plan import Budget


class Yielding:
    """Pauses and resumes rows that give way, and counts the steps in which such requests have no tokens."""

    def __init__(self, stages: Stages, budget: Budget):
        self.budget = budget
        self.is_closed = False
        """No more requests are admitted from the queue."""
        self.num_without = 0
        """Steps since the last one in which requests that give way could have tokens."""
        self._stages = stages

    @property
    def max_num_tokens(self) -> int:
        """The maximum number of tokens in the next step for requests that give way."""
        budget = self.budget
        if not self._is_sharing:
            return budget.max_num_batched_tokens
        has_turn = not self._stages.num_live_rows or self.num_without + 1 >= budget.yields_every
        return budget.max_num_yielding if has_turn else 0

    @property
    def num_left(self) -> int:
        """The part of `max_num_tokens` that rows in DECODE leave."""
        return self.max_num_tokens - self._stages.num_yielding

    def share(self, in_flight: Sequence[StepInFlight], notes: PlanNotes) -> int:
        """Pauses or resumes rows that give way; returns the number of further tokens that such requests may have.

        Without other requests, these are all tokens of the step.
        """
        stages, budget, most = self._stages, self.budget, self.max_num_tokens
        num_paused = stages.num_yielding - most
        num_free = min(budget.max_num_seqs, budget.max_num_batched_tokens) - stages.num_active
        num_resumed = min(-num_paused, len(stages.paused), num_free)
        if in_flight:
            if num_paused > 0 or num_resumed > 0:
                raise MustCommitError
            chunks = (chunk for step in in_flight for chunk in step.chunks if not chunk.draft_ids)
            num_paused += sum([chunk.requested.num_tokens for chunk in chunks if chunk.req.pending.gives_way])
            return -num_paused
        notes.paused += [_changed_row(stages.pause(), is_paused=True) for _ in range(num_paused)]
        resumed = [stages.resume() for _ in range(num_resumed)]
        if resumed and not self._is_sharing:  # otherwise they would soon be paused again
            notes.paused += [_changed_row(req, is_paused=False) for req in resumed]
        return most - stages.num_yielding

    @property
    def _is_sharing(self) -> bool:
        """True if there are requests to which others give way; once the queue is closed, only those with rows count."""
        stages = self._stages
        return stages.num_live_rows > 0 or (stages.num_live > 0 and not self.is_closed)


def _changed_row(req: Req, *, is_paused: bool) -> PausedRow:
    return PausedRow(req.uid, req.pending.attempt, is_paused)
