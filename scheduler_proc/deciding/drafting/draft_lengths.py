"""Chooses the number of draft tokens by the acceptance rate of each row and by the time of steps."""

from collections.abc import Sequence

from scheduler_proc.deciding.drafting.draft_state import FORCED, AcceptanceRate
from scheduler_proc.deciding.drafting.step_cost import StepCost

PROBE_STEPS = 100
"""After this many steps without proposals of the draft model, one row gets a draft token: costs may have changed."""

MIN_CHANCE = 0.1
"""Less likely draft tokens are not proposed, however cheap they seem before costs are measured."""

MAX_GROUP = 16
"""The largest group of tokens in kernels: if a whole group does not pay, more tokens do not either."""

CHEAPEST = 0.25
"""The minimum cost of a token in a step, in units of `seconds_per_token`."""


class DraftLengths:
    """Chooses the number of draft tokens per row that maximizes the tokens per second of the step.

    A row's j-th draft token is accepted with the product of the probabilities of its first j.

    `general` is the acceptance rate of a draft model over all rows, `forced` that of tokens forced by grammars.
    """

    def __init__(self) -> None:
        self.cost = StepCost()
        self.general = AcceptanceRate()
        self.forced = AcceptanceRate(FORCED)
        self.num_idle = 0
        """Steps since the draft model last proposed tokens."""
        self._num_tokens = 0
        self._num_expected = 0.0
        self._seconds = 0.0
        self._seconds_per_token = 0.0

    def begin_step(self, num_rows: int) -> None:
        """Begins a step with `num_rows` rows in DECODE, for which `choose` is called next.

        Prompts of the step do not count: a draft token must be worth its time in a step of decode rows.
        """
        self._num_tokens = num_rows
        self._num_expected = float(num_rows)
        self._seconds = self.cost.predict(num_rows)
        self._seconds_per_token = self.cost.seconds_per_token

    def choose(self, chances: Sequence[Sequence[float]], max_tokens: int) -> list[int]:
        """Returns the number of draft tokens for each of these rows, at most `max_tokens` in all.

        `chances` are the probabilities of a row's draft tokens if those before them are right. The likeliest tokens of
        all rows are chosen first, up to the number that maximizes tokens per second.
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
        """Returns the number of the draft model's tokens for each row, at most `most`, which is not 0 for all rows.

        One step of the draft model, whose time `drafting` predicts, makes the j-th tokens of all rows. They are made if
        they increase the tokens per second together, and for each row if its own token does so by itself.
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
