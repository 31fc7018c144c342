"""Tokens that followed the same prefix in another request, from the radix tree."""

from array import array
from collections.abc import Callable

from messages.columns import INT32
from scheduler_proc.deciding.drafting.match_rates import CONTINUATION, MatchRates

MAX_AHEAD = 256
"""The maximum number of tokens of one lookup, so that most steps compare a few tokens and need no lookup."""

LookUp = Callable[[int], "array[int]"]
"""Returns at most this many int32 ids that followed the request's tokens in another request; it may be none."""


class Continuation:
    """A guess at the next tokens of one request. There is at most one lookup per `interval` tokens of the request.

    `rates` counts how often the guess was right. Until the request has `idle_until` tokens there is nothing to find.
    """

    __slots__ = ("_guess", "_interval", "_next_lookup", "_rates", "_start", "idle_until")

    def __init__(self, interval: int, rates: MatchRates) -> None:
        self._interval = interval
        self._rates = rates
        self._guess: array[int] = array(INT32)
        self._start = 0
        """The number of tokens before the guess."""
        self._next_lookup = self.idle_until = 0

    def find(self, token_ids: "array[int]", look_up: LookUp) -> "array[int]":
        """Returns the guess after all these tokens, of which there are more than at the last call; it may be empty."""
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
        """Drops the part of the guess that has come true, or all of it after another token."""
        for index, token_id in enumerate(new_ids[: len(self._guess)]):
            is_right = self._guess[index] == token_id
            self._rates.count(CONTINUATION, is_right)
            if not is_right:
                self._guess = array(INT32)
                return
        self._guess = self._guess[len(new_ids) :]
