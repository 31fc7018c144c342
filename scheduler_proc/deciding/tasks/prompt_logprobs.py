"""Logprobs of prompts: which tokens of a step they are wanted of, and which of a prompt are known so far.

The logprob of a prompt token comes from the row of the token before it, so each is known with the chunk that computes
that one. Such a request takes a prefix from the cache only as far as its logprobs are known.
"""

from array import array

from messages.columns import INT32, num_int32
from messages.ring.replies import PromptLogprobs
from messages.ring.steps import LogprobColumns, PromptLogprobTargets
from scheduler_proc.deciding.rows.logprob_columns import has_nan, join
from scheduler_proc.deciding.rows.wanted import Wanted


class PromptLogprobsTask:
    """The logprobs of one prompt's tokens but the first, as far as they are known; they outlive a preemption."""

    def __init__(self, prompt_ids: "array[int]", num_top: int):
        self._target_ids = prompt_ids[1:]
        self.num_top = num_top
        self._parts: list[LogprobColumns] = []
        self.num_known = 0
        """How many tokens of the prompt need not be computed any more for this."""

    @property
    def is_complete(self) -> bool:
        return self.num_known == len(self._target_ids)

    def span(self, start: int, end: int) -> range:
        """Returns which targets a chunk of the positions `start` to `end` (exclusive) gives the logprobs of.

        Target i is known with position i. Those before `start` that are not known yet are about to be: the step in
        flight gives theirs.
        """
        first = max(start, self.num_known)
        return range(first, max(first, min(end, len(self._target_ids))))

    def wanted(self, start: int, end: int) -> Wanted:
        """Returns what such a chunk wants."""
        return Wanted(num_prompt_logprobs=len(self.span(start, end)))

    def targets(self, span: range) -> "array[int]":
        return self._target_ids[span.start : span.stop]

    def add(self, logprobs: LogprobColumns) -> bool:
        """Takes the next tokens' logprobs, with as many alternatives as this request wants or more.

        Returns False where one is not a number.
        """
        count = num_int32(logprobs.token_ids)
        next_targets = self.targets(range(self.num_known, self.num_known + count))
        assert logprobs.token_ids == next_targets.tobytes(), "these are the logprobs of other tokens"
        self._parts.append(logprobs)
        self.num_known += count
        return not has_nan(logprobs)

    def take_reply(self, uid: int, attempt: int) -> PromptLogprobs:
        """Returns what is told once it is complete, and forgets it; the counts stay."""
        parts, self._parts = self._parts, []
        return PromptLogprobs(uid, attempt, join(parts, self.num_top))


class PromptLogprobTargetColumns:
    """The columns of `PromptLogprobTargets` of one step in the making."""

    def __init__(self) -> None:
        self._token_indices: array[int] = array(INT32)
        self._target_ids: array[int] = array(INT32)
        self._num_top = 0

    def add(self, task: PromptLogprobsTask, first_index: int, start: int, end: int) -> None:
        """Adds the targets of a chunk of positions `start` to `end`; its first token is `first_index` of the step."""
        span = task.span(start, end)
        if span:
            offset = first_index - start
            self._token_indices.extend(range(offset + span.start, offset + span.stop))
            self._target_ids += task.targets(span)
            self._num_top = max(self._num_top, task.num_top)

    def columns(self) -> PromptLogprobTargets | None:
        """Returns the targets of the step, `None` where there are none."""
        if not self._token_indices:
            return None
        return PromptLogprobTargets(self._token_indices.tobytes(), self._target_ids.tobytes(), self._num_top)
