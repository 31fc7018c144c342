"""How many draft tokens are worth their time: from what was accepted of a row, and from what steps take."""

from collections.abc import Sequence

from scheduler_proc.deciding.step_cost import StepCost

UNTRIED = 2 / 3
"""How likely the draft tokens of a row are right that has had none: so likely that it soon has some. What wrong ones
cost is bounded by its credit."""

DECAY = 0.9
"""Weight of what is known of a row after each further run of draft tokens."""

IDLE_DECAY = 0.99
"""The same after each step for which it was not worth it: in time the row is tried again."""

REGAINED, MAX_CREDIT = 0.01, 3.0
"""In tokens: what a row's draft tokens may cost beyond what they bring, for each step, and at once. So a row none of
whose draft tokens is right loses, by what tokens are known to cost, at most 1 % of its tokens, 3 tokens and its last
draft tokens; the line may lie below the true cost, so a test allows 3 %."""

DEAREST_DECAY = 0.999
"""What a token costs is forgotten so slowly where it is charged: a cost that seems small for want of tries is not."""

PROBE_STEPS = 100
"""After so many steps in which a draft model was not worth it, one row gets a token of it: costs may have changed."""

NO_LIMIT = 1 << 30


class AcceptanceRate:
    """How likely a row's next draft token is right, by its latest ones: without any, as likely as `general` says, which
    counts those of all rows, or else `UNTRIED`."""

    __slots__ = ("_accepted", "_general", "_tried", "credit", "value")

    def __init__(self) -> None:
        self.credit = MAX_CREDIT
        self._accepted = self._tried = 0.0
        self._general: AcceptanceRate | None = None
        self._update()

    def follow(self, general: "AcceptanceRate") -> None:
        """From now on what is not known of this row is taken from `general`, which counts its draft tokens, too."""
        self._general = general
        self._update()

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Counts the draft tokens of one step: the right ones and the first wrong one, for nothing is known of others.

        The first is a wrong one where fewer than all were accepted.
        """
        self._accepted = DECAY * self._accepted + num_accepted
        self._tried = DECAY * self._tried + num_accepted + (num_accepted < num_drafts)
        self.credit = min(MAX_CREDIT, self.credit + num_accepted)
        if self._general is not None:
            self._general.add(num_drafts, num_accepted)
        self._update()

    def fade(self) -> None:
        """Forgets a little."""
        if not self._tried:
            return
        self._accepted *= IDLE_DECAY
        self._tried *= IDLE_DECAY
        self._update()

    def _update(self) -> None:
        prior = UNTRIED if self._general is None else self._general.value
        self.value = (self._accepted + 3 * prior) / (self._tried + 3)


class DraftLengths:
    """Gives draft tokens to rows as long as each makes the step yield more tokens a second, all rows together.

    A row's j-th draft token is accepted with probability p^j, where p is its `AcceptanceRate`. It is worth its time
    where p^j / (seconds of a token) is above the (expected tokens) / (seconds) of the step without it.

    `general` is the rate of all rows with drafts of a draft model.
    """

    def __init__(self) -> None:
        self.cost = StepCost()
        self.general = AcceptanceRate()
        self.num_idle = 0
        """Steps since a draft model has proposed anything."""
        self._num_expected = 0.0
        self._seconds = 0.0
        self._seconds_per_token = 0.0
        self._dearest = 0.0

    def begin_step(self, num_rows: int, num_tokens: int) -> None:
        """From now on `choose` is asked about this step: rows that get a token, and all tokens but draft tokens."""
        self._num_expected = float(num_rows)
        self._seconds = self.cost.predict(num_tokens)
        self._seconds_per_token = self.cost.seconds_per_token
        self._dearest = max(self._seconds_per_token, DEAREST_DECAY * self._dearest)

    def choose(self, rate: AcceptanceRate) -> int:
        """Returns the most draft tokens that are worth their time for a row; for one that gets none, time goes on."""
        cost = self._num_expected * self._seconds_per_token
        if not cost:
            return NO_LIMIT
        rate.credit = min(MAX_CREDIT, rate.credit + REGAINED)
        if rate.credit <= 0 or rate.value * self._seconds <= cost:
            rate.fade()
            return 0
        expected, seconds, gain, count = self._num_expected, self._seconds, rate.value, 0
        while gain * seconds > expected * self._seconds_per_token:
            expected += gain
            seconds += self._seconds_per_token
            gain *= rate.value
            count += 1
        return count

    def add(self, rate: AcceptanceRate, num_drafts: int) -> None:
        """Counts what a row of the step has got."""
        if self._seconds:
            rate.credit -= num_drafts * self._dearest * self._num_expected / self._seconds
        self._seconds += num_drafts * self._seconds_per_token
        p = rate.value
        self._num_expected += p * (1 - p**num_drafts) / (1 - p)

    def choose_all(self, rates: Sequence[AcceptanceRate], most: Sequence[int], drafting: StepCost) -> list[int]:
        """Returns how many draft tokens of a draft model are worth their time for each row, at most so many (0 not for
        all of them).

        The j-th tokens of all rows are made by one step of that model, which takes what `drafting` says. They are worth
        it where all of them together make the step yield more, and a row's own where it does by itself.
        """
        counts = [0] * len(rates)
        for depth in range(1, max(most) + 1):
            per_token = self._seconds_per_token + drafting.seconds_per_token
            worth = self._num_expected * per_token
            chosen = [
                row
                for row, rate in enumerate(rates)
                if counts[row] == depth - 1 < most[row] and rate.value**depth * self._seconds >= worth
            ]
            gain = sum(rates[row].value ** depth for row in chosen)
            seconds = drafting.predict(len(chosen)) + len(chosen) * self._seconds_per_token
            if not chosen or gain * self._seconds < self._num_expected * seconds:
                break
            self._num_expected += gain
            self._seconds += seconds
            for row in chosen:
                counts[row] = depth
        self.num_idle += 1
        if not any(counts) and self.num_idle > PROBE_STEPS:
            counts[next(row for row, count in enumerate(most) if count)] = 1
        return counts
