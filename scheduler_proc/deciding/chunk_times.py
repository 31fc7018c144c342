"""How many tokens of a prompt take equally long behind a longer prefix, so that no stage of a pipeline waits.

A token attends to all before it. n tokens behind p others therefore take a * n + b * n * (p + n / 2) seconds. Both
factors follow from the latest steps with prompts, by least squares. Nothing is cut until `record_time` is called.
"""

from math import sqrt

from messages.columns import unpack_int32
from messages.ring.steps import Batch
from scheduler_proc.deciding.step_size import MIN_TOKENS, MULTIPLE

DECAY = 0.95
"""The factor by which the weight of a step falls with each further step."""

LEAST_DETERMINANT = 1e-4
"""Steps that are all alike determine no second factor. 0: all alike, 1: independent."""

LEAST_GROWTH = 1e-7
"""Less counts as 0: a chunk behind 100,000 tokens takes 1 % longer."""


class ChunkTimes:
    """`growth` is b / a: the time that a token's attention to one more token takes, in the other times of a token."""

    def __init__(self) -> None:
        self.growth = 0.0
        self._tokens2 = self._pairs2 = self._tokens_pairs = self._tokens_s = self._pairs_s = 0.0

    def record_time(self, batch: Batch, seconds: float) -> None:
        """Counts a step of a pipeline that was busy before it."""
        rows = zip(unpack_int32(batch.query_lens), unpack_int32(batch.context_lens), strict=True)
        tokens, pairs = batch.num_tokens, sum([count * (start + count / 2) for count, start in rows])
        self._tokens2 = DECAY * self._tokens2 + tokens * tokens
        self._pairs2 = DECAY * self._pairs2 + pairs * pairs
        self._tokens_pairs = DECAY * self._tokens_pairs + tokens * pairs
        self._tokens_s = DECAY * self._tokens_s + tokens * seconds
        self._pairs_s = DECAY * self._pairs_s + pairs * seconds
        determinant = self._tokens2 * self._pairs2 - self._tokens_pairs**2
        of_tokens = self._tokens_s * self._pairs2 - self._pairs_s * self._tokens_pairs
        of_pairs = self._pairs_s * self._tokens2 - self._tokens_s * self._tokens_pairs
        if determinant > LEAST_DETERMINANT * self._tokens2 * self._pairs2 and of_tokens > 0:
            growth = of_pairs / of_tokens
            self.growth = growth if growth > LEAST_GROWTH else 0.0

    def limit(self, start: int, num_tokens: int) -> int:
        """Returns how many tokens behind `start` others take as long as the first `num_tokens` of a prompt.

        They are whole blocks, and `MIN_TOKENS` at least, but no more than `num_tokens`.
        """
        half, one = self.growth / 2, 1 + self.growth * start
        count = (sqrt(one * one + 4 * half * num_tokens * (1 + half * num_tokens)) - one) / self.growth
        return min(num_tokens, max(MIN_TOKENS, round(count) // MULTIPLE * MULTIPLE))
