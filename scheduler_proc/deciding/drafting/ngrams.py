"""N-gram lookup: finds an earlier occurrence of a request's last tokens and follows it as long as it matches."""

from array import array

from scheduler_proc.deciding.drafting.match_rates import KINDS, MAX_LENGTH, MatchRates

MAX_SEARCHED = 1 << 15
"""The number of latest tokens of a request that are searched. Attention over them takes far longer."""


class NgramMatch:
    """The latest earlier occurrence of one request's last tokens, in its prompt or its output.

    A match begins at the latest occurrence of the last two tokens and lasts as long as the text continues in the same
    way. The text is searched only while there is none.

    `place` is the index of the token that would come next, 0 without a match. `length` is the number of matching
    tokens, at most `MAX_LENGTH`. `rates` counts how often such a token was right.
    """

    __slots__ = ("_num_known", "length", "place", "rates")

    def __init__(self, rates: MatchRates):
        self.rates = rates
        self.place = self.length = self._num_known = 0

    def follow(self, token_ids: "array[int]") -> None:
        """Updates the match for all these tokens, of which there are more than at the last call."""
        if self.place:
            for token_id in token_ids[self._num_known :]:
                is_right = token_ids[self.place] == token_id
                self.rates.count(KINDS[self.length], is_right)
                if not is_right:
                    self.place = 0
                    break
                self.place, self.length = self.place + 1, min(self.length + 1, MAX_LENGTH)
        self._num_known = len(token_ids)
        if not self.place and len(token_ids) > 2:
            self.place = _search(token_ids)
            self.length = self.place and _count_back(token_ids, self.place)

    def next_ids(self, token_ids: "array[int]", num_tokens: int) -> "array[int]":
        """Returns `num_tokens` tokens (int32) that followed. A match that reaches the end is repeated."""
        found = token_ids[self.place : self.place + num_tokens]
        while len(found) < num_tokens:
            found += found[: num_tokens - len(found)]
        return found

    def chances(self, num_tokens: int) -> list[float]:
        """Returns the probability of each of these tokens if those before it are right, as the match is longer then."""
        kinds = KINDS[self.length : self.length + num_tokens]
        by_kind = {kind: self.rates.chance(kind) for kind in set(kinds)}
        chances = [by_kind[kind] for kind in kinds]
        return chances + chances[-1:] * (num_tokens - len(chances))


def _search(token_ids: "array[int]") -> int:
    """Returns the latest place after an earlier occurrence of the last two tokens, 0 if there is none."""
    text, size = token_ids.tobytes(), token_ids.itemsize
    pair, start = text[-2 * size :], -size * MAX_SEARCHED
    found = text.rfind(pair, start, -size)
    while found > 0 and found % size:
        found = text.rfind(pair, start, found + len(pair) - 1)
    return 0 if found < 0 else found // size + 2


def _count_back(token_ids: "array[int]", place: int) -> int:
    """Returns how many tokens before `place` equal the last tokens; at least two do."""
    length = 2
    while length < min(place, MAX_LENGTH) and token_ids[place - 1 - length] == token_ids[-1 - length]:
        length += 1
    return length
