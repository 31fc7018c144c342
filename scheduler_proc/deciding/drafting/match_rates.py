"""How likely the token behind a match is right: by the length of the match, of one row and of all rows."""

from typing import Self

MIN_LENGTH, MAX_LENGTH = 2, 20
"""Tokens by which matches are told apart; a longer one counts as one of so many."""

KINDS = (0, 0, 0, 1, 2, 3, 4, 5, *[6] * 4, *[7] * 8, 8)
"""By the length of a match, of at least 2 tokens: which of them count together."""

CONTINUATION = 9
"""What another request had behind all tokens of this one."""

PRIORS = (0.3, 0.4, 0.65, 0.75, 0.75, 0.75, 0.85, 0.9, 0.93, 0.8)
"""By kind: how likely it is right where nothing is known yet."""

PRIOR_WEIGHT, MAX_TRIED = 8.0, 64.0
"""In tokens: how much of what is known of all rows `PRIORS` outweigh, and after how many what is known weighs half."""

GENERAL_WEIGHT, MAX_ROW_TRIED = 6.0, 32.0
"""The same for a row, beside what is known of all rows."""


class MatchRates:
    """Counts how often what a match foretold was right, by kind; each token of a row's output tells, drafted or not.

    Those of a row begin with what `general`, which counts for all rows, knows by then.
    """

    __slots__ = ("_general", "_right", "_tried")

    def __init__(self, general: Self | None = None):
        self._general = general
        self._right = [0.0] * len(PRIORS)
        self._tried = [0.0] * len(PRIORS)

    def count(self, kind: int, is_right: bool) -> None:
        if self._general is not None:
            self._general.count(kind, is_right)
        self._right[kind] += is_right
        self._tried[kind] += 1.0
        if self._tried[kind] >= (MAX_TRIED if self._general is None else MAX_ROW_TRIED):
            self._right[kind] /= 2
            self._tried[kind] /= 2

    def chance(self, kind: int) -> float:
        """Returns how likely the next token is right, above 0 and below 1."""
        if self._general is None:
            prior, weight = PRIORS[kind], PRIOR_WEIGHT
        else:
            prior, weight = self._general.chance(kind), GENERAL_WEIGHT
        return (self._right[kind] + weight * prior) / (self._tried[kind] + weight)
