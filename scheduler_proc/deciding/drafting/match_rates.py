"""The probability that the token after a match is right, by the length of the match, per row and overall."""

from typing import Self

MIN_LENGTH, MAX_LENGTH = 2, 20
"""The lengths of matches, in tokens, that are distinguished; longer ones count as `MAX_LENGTH`."""

KINDS = (0, 0, 0, 1, 2, 3, 4, 5, *[6] * 4, *[7] * 8, 8)
"""The kind of a match by its length (at least 2 tokens)."""

CONTINUATION = 9
"""The kind of a continuation: tokens that followed the same prefix in another request."""

PRIORS = (0.3, 0.4, 0.65, 0.75, 0.75, 0.75, 0.85, 0.9, 0.93, 0.8)
"""The initial probability of each kind."""

PRIOR_WEIGHT, MAX_TRIED = 8.0, 64.0
"""The weight of `PRIORS` in tokens, and the number of tokens after which the counts of all rows are halved."""

GENERAL_WEIGHT, MAX_ROW_TRIED = 6.0, 32.0
"""The same for one row, whose prior is the rate of all rows."""


class MatchRates:
    """Counts how often the token after a match was right, by kind, for each token of the output, drafted or not.

    The rates of a row have those of all rows, `general`, as their prior.
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
        """Returns the probability that the next token is right, above 0 and below 1."""
        if self._general is None:
            prior, weight = PRIORS[kind], PRIOR_WEIGHT
        else:
            prior, weight = self._general.chance(kind), GENERAL_WEIGHT
        return (self._right[kind] + weight * prior) / (self._tried[kind] + weight)
