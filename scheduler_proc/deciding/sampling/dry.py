"""The DRY penalty on tokens that would continue a repetition."""

import math
from array import array

from messages.columns import unpack_int32
from messages.ring.dry import Dry

MAX_PENALTY = 1e6
"""The maximum penalty, safe for float32 logits."""

MAX_LENGTH = 256
"""The maximum number of tokens of a repetition that are compared, whatever the base."""

MAX_PLACES = 4096
"""The maximum number of places that are compared, the latest first: in a text of one repeated token, every place is."""


class DryPenalty:
    """The penalty of one request. It has no state, so a continuation has the same penalties."""

    __slots__ = ("_allowed_length", "_base", "_breakers", "_last_n", "_longest", "_multiplier")

    def __init__(self, dry: Dry):
        self._multiplier = dry.multiplier
        self._base = dry.base
        self._allowed_length = dry.allowed_length
        self._last_n = dry.penalty_last_n
        self._breakers = frozenset(unpack_int32(dry.breaker_ids))
        self._longest = max(dry.allowed_length, 1, self._longest_that_counts())

    def penalties(self, token_ids: "array[int]") -> dict[int, float]:
        """Returns the (negative) change of the logit of each token that would continue a repetition."""
        window = token_ids if self._last_n < 0 else token_ids[max(0, len(token_ids) - self._last_n) :]
        suffix = self._suffix(window)
        return {
            token_id: -min(MAX_PENALTY, self._multiplier * self._base ** (length - self._allowed_length))
            for token_id, length in self._repeated(window, suffix).items()
        }

    def _longest_that_counts(self) -> int:
        if self._base <= 1:
            return 0
        exponent = math.log(MAX_PENALTY / self._multiplier) / math.log(self._base)
        return self._allowed_length + math.ceil(min(max(exponent, 0), MAX_LENGTH))

    def _suffix(self, window: "array[int]") -> "array[int]":
        """Returns the last tokens after the last breaker, at most the length of the longest repetition."""
        begin = len(window)
        while begin > 0 and len(window) - begin < self._longest and window[begin - 1] not in self._breakers:
            begin -= 1
        return window[begin:]

    def _repeated(self, window: "array[int]", suffix: "array[int]") -> dict[int, int]:
        """Returns the tokens that followed earlier occurrences of `suffix`, with the longest match of each."""
        needed = max(1, self._allowed_length)
        lengths: dict[int, int] = {}
        if len(suffix) < needed:
            return lengths
        data, pattern = window[:-1].tobytes(), suffix[-needed:].tobytes()
        end = len(data)
        for _ in range(MAX_PLACES):
            place = data.rfind(pattern, 0, end)
            if place < 0:
                break
            end = place + len(pattern) - 1
            if place % 4 == 0:
                first = place // 4
                follower = window[first + needed]
                if lengths.get(follower, 0) < len(suffix):
                    length = needed + _num_equal_before(window, first, suffix, len(suffix) - needed)
                    lengths[follower] = max(length, lengths.get(follower, 0))
        return lengths


def _num_equal_before(window: "array[int]", place: int, suffix: "array[int]", index: int) -> int:
    """Returns the number of equal tokens directly before `place` in `window` and `index` in `suffix`."""
    num_equal = 0
    while num_equal < min(place, index) and window[place - num_equal - 1] == suffix[index - num_equal - 1]:
        num_equal += 1
    return num_equal
