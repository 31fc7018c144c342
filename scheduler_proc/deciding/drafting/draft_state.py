"""The acceptance rates of draft tokens, and the types of draft tokens and of steps that propose them."""

from array import array
from collections.abc import Generator, Mapping

from messages.columns import INT32
from messages.ring.steps import Batch, ForwardOutput

UNTRIED, FORCED = 2 / 3, 0.97
"""The initial acceptance rates for the draft tokens of a draft model and of a grammar."""

DECAY = 0.9
"""The factor by which the weight of a row's history falls with each further run of draft tokens."""

IDLE_DECAY = 0.99
"""The same for each step in which forced tokens were not worth their time: eventually they are tried again."""

NO_IDS: "array[int]" = array(INT32)

Drafts = Mapping[int, "array[int]"]
"""Draft tokens (int32) by uid."""

DraftSteps = Generator[Batch, ForwardOutput, Drafts]
"""Yields the steps of the draft model to run, receives the result of each, and returns the draft tokens."""


class AcceptanceRate:
    """The probability that a row's next draft token is accepted, from its latest draft tokens.

    The prior is the rate of all rows (`general`), or else `untried`.
    """

    __slots__ = ("_accepted", "_general", "_tried", "_untried", "value")

    def __init__(self, untried: float = UNTRIED) -> None:
        self._accepted = self._tried = 0.0
        self._general: AcceptanceRate | None = None
        self._untried = untried
        self._update()

    def follow(self, general: "AcceptanceRate") -> None:
        """Makes `general` the prior; it counts the draft tokens of this row, too."""
        self._general = general
        self._update()

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Counts the accepted draft tokens of one step and the first rejected one, if there is one.

        Nothing is known about the tokens after it.
        """
        self._accepted = DECAY * self._accepted + num_accepted
        self._tried = DECAY * self._tried + num_accepted + (num_accepted < num_drafts)
        if self._general is not None:
            self._general.add(num_drafts, num_accepted)
        self._update()

    def fade(self) -> None:
        """Reduces the weight of the history, also in `general`."""
        if self._general is not None:
            self._general.fade()
        self._accepted *= IDLE_DECAY
        self._tried *= IDLE_DECAY
        self._update()

    def _update(self) -> None:
        prior = self._untried if self._general is None else self._general.value
        self.value = (self._accepted + 3 * prior) / (self._tried + 3)
