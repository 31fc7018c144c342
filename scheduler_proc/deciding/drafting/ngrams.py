"""N-gram lookup: where the last tokens of a request stood before, and how long the text goes on as it did there."""

from array import array

from scheduler_proc.deciding.drafting.match_rates import KINDS, MAX_LENGTH, MatchRates

MAX_SEARCHED = 1 << 15
"""Tokens that are searched, the latest of a request: that takes far less than attention takes for them."""


class NgramMatch:
    """What followed the last tokens of one request where they stood before, in its prompt or its output.

    A match begins at the latest place where the last two tokens stood and lasts as long as the text goes on as it did
    there. Only without one is the text searched.

    `place` is that of the token which would come next, 0 without a match. `length` says how many tokens match, at most
    `MAX_LENGTH`. `rates` count how often such a token was right.
    """

    __slots__ = ("_num_known", "length", "place", "rates")

    def __init__(self, rates: MatchRates):
        self.rates = rates
        self.place = self.length = self._num_known = 0

    def follow(self, token_ids: "array[int]") -> None:
        """Finds the match of all these tokens, which have grown since the last call."""
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
        """Returns so many tokens (int32) that followed. A match that reaches to the end goes on again and again."""
        found = token_ids[self.place : self.place + num_tokens]
        while len(found) < num_tokens:
            found += found[: num_tokens - len(found)]
        return found

    def chances(self, num_tokens: int) -> list[float]:
        """Returns how likely each of so many of these is right where those before it are: the match is longer then."""
        kinds = KINDS[self.length : self.length + num_tokens]
        by_kind = {kind: self.rates.chance(kind) for kind in set(kinds)}
        chances = [by_kind[kind] for kind in kinds]
        return chances + chances[-1:] * (num_tokens - len(chances))


def _search(token_ids: "array[int]") -> int:
    """Returns the latest place behind two tokens that are the last two, 0 where there is none."""
    text, size = token_ids.tobytes(), token_ids.itemsize
    pair, start = text[-2 * size :], -size * MAX_SEARCHED
    found = text.rfind(pair, start, -size)
    while found > 0 and found % size:
        found = text.rfind(pair, start, found + len(pair) - 1)
    return 0 if found < 0 else found // size + 2


def _count_back(token_ids: "array[int]", place: int) -> int:
    """Returns how many tokens before `place` are the last ones; two are."""
    length = 2
    while length < min(place, MAX_LENGTH) and token_ids[place - 1 - length] == token_ids[-1 - length]:
        length += 1
    return length
