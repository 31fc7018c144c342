"""Logprobs of prompts: which tokens of a step have to be scored, and what is known of a prompt over its chunks.

The logprob of a prompt token comes from the row of the token before it, so each is known with the chunk that computes
that one. Such a request takes a beginning from the cache only as far as its tokens have been scored.
"""

from array import array

from messages.columns import INT32, num_int32
from messages.steps import LogprobColumns, ScoredTokens
from scheduler_proc.deciding.logprob_columns import join


class PromptScores:
    """The logprobs of one prompt's tokens but the first, as far as they are known; they outlive a preemption."""

    def __init__(self, target_ids: "array[int]", num_top: int):
        self._target_ids = target_ids
        self.num_top = num_top
        self._parts: list[LogprobColumns] = []
        self.num_scored = 0

    @property
    def is_complete(self) -> bool:
        return self.num_scored == len(self._target_ids)

    def span(self, start: int, end: int) -> range:
        """Returns which targets a chunk of the positions `start` to `end` (exclusive) scores.

        Target i is known with position i. Those before `start` that are not known yet are about to be: the step in
        flight scores them.
        """
        first = max(start, self.num_scored)
        return range(first, max(first, min(end, len(self._target_ids))))

    def targets(self, span: range) -> "array[int]":
        return self._target_ids[span.start : span.stop]

    def add(self, scores: LogprobColumns) -> None:
        """Takes the next tokens' logprobs; they may come with more alternatives than this request wants."""
        count = num_int32(scores.token_ids)
        next_targets = self.targets(range(self.num_scored, self.num_scored + count))
        assert scores.token_ids == next_targets.tobytes(), "other tokens were scored"
        self._parts.append(scores)
        self.num_scored += count

    def take_all(self) -> LogprobColumns:
        """Returns what is known, and forgets it; the counts stay."""
        parts, self._parts = self._parts, []
        return join(parts, self.num_top)


class ScoredColumns:
    """The columns of `ScoredTokens` of one step in the making."""

    def __init__(self) -> None:
        self._token_indices: array[int] = array(INT32)
        self._target_ids: array[int] = array(INT32)
        self._num_top = 0

    def add(self, scores: PromptScores, first_index: int, start: int, end: int) -> None:
        """Adds what a chunk of the positions `start` to `end` scores; its first token is `first_index` of the step."""
        span = scores.span(start, end)
        if span:
            offset = first_index - start
            self._token_indices.extend(range(offset + span.start, offset + span.stop))
            self._target_ids += scores.targets(span)
            self._num_top = max(self._num_top, scores.num_top)

    def columns(self) -> ScoredTokens | None:
        """Returns what the step scores, `None` where nothing."""
        if not self._token_indices:
            return None
        return ScoredTokens(self._token_indices.tobytes(), self._target_ids.tobytes(), self._num_top)
