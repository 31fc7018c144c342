"""Logprobs of prompts: which tokens of a step have to be scored, and what is known of a prompt over its chunks.

The logprob of a prompt token comes from the row of the token before it, so each is known with the chunk that computes
that one. Such a request takes a beginning from the cache only as far as its tokens have been scored.
"""

from array import array
from bisect import bisect_left

from messages.columns import INT32, num_int32, pack_int32, unpack_int32
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

    def num_new(self, end: int) -> int:
        """Returns how many tokens are scored once all up to position `end` (exclusive) are computed."""
        return max(0, min(end, len(self._target_ids)) - self.num_scored)

    def add(self, scores: LogprobColumns) -> None:
        """Takes the next tokens' logprobs; they may come with more alternatives than this request wants."""
        count = num_int32(scores.token_ids)
        assert scores.token_ids == self.next_targets(count).tobytes(), "other tokens were scored"
        self._parts.append(scores)
        self.num_scored += count

    def take_all(self) -> LogprobColumns:
        """Returns what is known, and forgets it; the counts stay."""
        parts, self._parts = self._parts, []
        return join(parts, self.num_top)

    def next_targets(self, count: int) -> "array[int]":
        """Returns the next tokens to be scored."""
        return self._target_ids[self.num_scored : self.num_scored + count]


class ScoredColumns:
    """The columns of `ScoredTokens` of one step in the making."""

    def __init__(self) -> None:
        self._token_indices: array[int] = array(INT32)
        self._target_ids: array[int] = array(INT32)
        self._num_top = 0

    def add(self, scores: PromptScores, first_index: int, start: int, end: int) -> None:
        """Adds what a chunk of the positions `start` to `end` scores; its first token is `first_index` of the step."""
        count = scores.num_new(end)
        if count:
            index = first_index + scores.num_scored - start
            assert index >= first_index, "a token that is to be scored was not computed"
            self._token_indices.extend(range(index, index + count))
            self._target_ids += scores.next_targets(count)
            self._num_top = max(self._num_top, scores.num_top)

    def columns(self) -> ScoredTokens | None:
        """Returns what the step scores, `None` where nothing."""
        if not self._token_indices:
            return None
        return ScoredTokens(self._token_indices.tobytes(), self._target_ids.tobytes(), self._num_top)


def take_scored(scored: ScoredTokens, first: int, last: int) -> ScoredTokens | None:
    """Returns what the tokens `first` to `last` (exclusive) of the step score, counted from `first`."""
    indices = unpack_int32(scored.token_indices)
    low, high = bisect_left(indices, first), bisect_left(indices, last)
    if low == high:
        return None
    moved = pack_int32(index - first for index in indices[low:high])
    return ScoredTokens(moved, scored.target_ids[4 * low : 4 * high], scored.num_top)
