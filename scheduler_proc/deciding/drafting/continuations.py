"""What came behind a request's tokens when another request had the same, as the radix tree still knows it."""

from array import array
from collections.abc import Callable

from messages.columns import INT32
from scheduler_proc.deciding.drafting.match_rates import CONTINUATION, MatchRates

MAX_AHEAD = 256
"""Tokens that one lookup remembers, so that most steps compare a few tokens and look nothing up."""

LookUp = Callable[[int], "array[int]"]
"""Returns at most so many int32 ids that another request had behind the request's tokens; none is good."""


class Continuation:
    """What one request may go on with. It is looked up at most once for each `interval` of the request's tokens.

    `rates` count how often it was right. With fewer tokens than `idle_until` there is nothing to find.
    """

    __slots__ = ("_guess", "_interval", "_next_lookup", "_rates", "_start", "idle_until")

    def __init__(self, interval: int, rates: MatchRates) -> None:
        self._interval = interval
        self._rates = rates
        self._guess: array[int] = array(INT32)
        self._start = 0
        """How many tokens there were in front of the guess."""
        self._next_lookup = self.idle_until = 0

    def find(self, token_ids: "array[int]", look_up: LookUp) -> "array[int]":
        """Returns what may come behind all these tokens, which have grown since the last call; it may be nothing."""
        num_tokens = len(token_ids)
        if self._guess:
            self._check(token_ids[self._start :])
        self._start = num_tokens
        if not self._guess and num_tokens >= self._next_lookup:
            self._next_lookup = num_tokens + self._interval
            self._guess = look_up(MAX_AHEAD)
        self.idle_until = 0 if self._guess else self._next_lookup
        return self._guess

    def _check(self, new_ids: "array[int]") -> None:
        """Drops what has come of the guess, or all of it where something else has."""
        for index, token_id in enumerate(new_ids[: len(self._guess)]):
            is_right = self._guess[index] == token_id
            self._rates.count(CONTINUATION, is_right)
            if not is_right:
                self._guess = array(INT32)
                return
        self._guess = self._guess[len(new_ids) :]
