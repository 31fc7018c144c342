"""How many draft tokens are worth their time: from what was accepted of a row, and from what steps take."""

from collections.abc import Sequence

from scheduler_proc.deciding.drafting.step_cost import StepCost

UNTRIED, FORCED = 2 / 3, 0.97
"""How likely the draft tokens of a draft model, and of a grammar, are right before any was tried."""

DECAY = 0.9
"""Weight of what is known of a row after each further run of draft tokens."""

IDLE_DECAY = 0.99
"""The same after each step for which what its grammar forces was not worth it: in time it is tried again."""

PROBE_STEPS = 100
"""After so many steps in which a draft model was not worth it, one row gets a token of it: costs may have changed."""

MIN_CHANCE = 0.1
"""Draft tokens that are less likely right are not worth their bother, however cheap they seem for want of tries."""

MAX_GROUP = 16
"""Kernels take tokens in groups of at most so many: where these do not pay together, more do not either."""

CHEAPEST = 0.25
"""In `seconds_per_token`: less than this no token costs beside others."""


class AcceptanceRate:
    """How likely a row's next draft token is right, by its latest ones: without any, as likely as `general` says, which
    counts those of all rows, or else `untried`."""

    __slots__ = ("_accepted", "_general", "_tried", "_untried", "value")

    def __init__(self, untried: float = UNTRIED) -> None:
        self._accepted = self._tried = 0.0
        self._general: AcceptanceRate | None = None
        self._untried = untried
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
        if self._general is not None:
            self._general.add(num_drafts, num_accepted)
        self._update()

    def fade(self) -> None:
        """Forgets a little, `general` too."""
        if self._general is not None:
            self._general.fade()
        self._accepted *= IDLE_DECAY
        self._tried *= IDLE_DECAY
        self._update()

    def _update(self) -> None:
        prior = self._untried if self._general is None else self._general.value
        self.value = (self._accepted + 3 * prior) / (self._tried + 3)


class DraftLengths:
    """Gives draft tokens to rows so that the step yields the most tokens a second, all rows together.

    A row's j-th draft token is right with the product of the probabilities of its first j.

    `general` is the rate of all rows with drafts of a draft model, `forced` that with what grammars force.
    """

    def __init__(self) -> None:
        self.cost = StepCost()
        self.general = AcceptanceRate()
        self.forced = AcceptanceRate(FORCED)
        self.num_idle = 0
        """Steps since a draft model has proposed anything."""
        self._num_tokens = 0
        self._num_expected = 0.0
        self._seconds = 0.0
        self._seconds_per_token = 0.0

    def begin_step(self, num_rows: int) -> None:
        """From now on `choose` is asked about a step with so many rows in DECODE.

        What else it computes it computes anyhow: a draft token must be worth its time beside decode rows.
        """
        self._num_tokens = num_rows
        self._num_expected = float(num_rows)
        self._seconds = self.cost.predict(num_rows)
        self._seconds_per_token = self.cost.seconds_per_token

    def choose(self, chances: Sequence[Sequence[float]], max_tokens: int) -> list[int]:
        """Returns how many draft tokens each of these rows gets, at most so many in all.

        `chances` say how likely each of its draft tokens is right where those before it are. The likeliest of all rows
        come first, and as many of them as make the step yield the most tokens a second.
        """
        expected, num_chosen, best, least = self._num_expected, 0, 0.0, 0.0
        if self._seconds:
            best = expected / self._seconds
            least = max(MIN_CHANCE, CHEAPEST * self._seconds_per_token * best)
        tokens: list[tuple[float, int]] = []
        for row, own in enumerate(chances):
            product = 1.0
            for chance in own:
                product *= chance
                if product < least:
                    break
                tokens.append((product, row))
        tokens.sort(reverse=True)
        for count, (chance, _) in enumerate(tokens[:max_tokens], 1):
            if count > num_chosen + MAX_GROUP:
                break
            expected += chance
            seconds = self.cost.predict(self._num_tokens + count)
            if not seconds or expected / seconds > best:
                best, num_chosen = seconds and expected / seconds, count
                self._num_expected, self._seconds = expected, seconds
        self._num_tokens += num_chosen
        counts = [0] * len(chances)
        for _, row in tokens[:num_chosen]:
            counts[row] += 1
        return counts

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
