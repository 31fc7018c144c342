"""The pooled hidden states of a prompt: which tokens of a step are pooled, and what is known of a prompt's vector."""

import math
from array import array

from messages.columns import FLOAT32, INT32, unpack_float32, unpack_int32
from messages.replies import PooledVector
from messages.requests import Pooling
from messages.steps import PooledTokens, VectorColumns
from scheduler_proc.deciding.wanted import Wanted


class PoolingTask:
    """The vector of one prompt, as far as its tokens are known; it outlives a preemption."""

    def __init__(self, num_prompt_tokens: int, pooling: Pooling):
        self._num_prompt_tokens = num_prompt_tokens
        self.num_known = 0 if pooling == "mean" else num_prompt_tokens - 1
        self._sums: array[float] = array(FLOAT32)

    @property
    def is_complete(self) -> bool:
        return self.num_known == self._num_prompt_tokens

    def span(self, start: int, end: int) -> range:
        """Returns which positions of a chunk are pooled."""
        first = max(start, self.num_known)
        return range(first, max(first, min(end, self._num_prompt_tokens)))

    def wanted(self, start: int, end: int) -> Wanted:
        return Wanted(num_vectors=int(bool(self.span(start, end))))

    def add(self, vector: VectorColumns) -> bool:
        """Takes the sums of the next tokens; returns False where they are not finite."""
        sums = unpack_float32(vector.sums)
        self._sums = array(FLOAT32, map(sum, zip(self._sums, sums, strict=True))) if self._sums else sums
        self.num_known += sum(unpack_int32(vector.num_pooled))
        return math.isfinite(sum(sums))

    def take_reply(self, uid: int, attempt: int) -> PooledVector:
        length = math.hypot(*self._sums) or 1.0
        return PooledVector(uid, attempt, array(FLOAT32, (value / length for value in self._sums)).tobytes())


class PooledTokenColumns:
    """The columns of `PooledTokens` of one step in the making."""

    def __init__(self) -> None:
        self._token_indices: array[int] = array(INT32)
        self._are_last: array[int] = array(INT32)

    def add(self, task: PoolingTask, first_index: int, start: int, end: int) -> None:
        """Adds a chunk of positions `start` to `end`; its first token is `first_index` of the step."""
        span = task.span(start, end)
        self._token_indices.extend(first_index - start + position for position in span)
        self._are_last.extend([0] * (len(span) - 1) + [1])

    def columns(self) -> PooledTokens | None:
        if not self._token_indices:
            return None
        return PooledTokens(self._token_indices.tobytes(), self._are_last.tobytes())
