"""Predicts the time of a step from its number of tokens, by the latest steps."""

COST_DECAY = 0.97
"""The factor by which the weight of past steps falls with each further step."""

LEAST_COST = 0.02
"""The minimum cost of one more token, in average costs of a token of the step. It is also the initial value, so that
drafts are tried."""

PRIOR_VARIANCE = 0.02
"""The weight of that assumption, in tokens². The line therefore flattens while all steps have the same size."""

OUTLIER, SLOW_WEIGHT = 1.5, 0.1
"""A step that takes longer than predicted has `SLOW_WEIGHT`, as another process may have had the cores, and counts as
at most `OUTLIER` times the prediction. The line therefore lies near the fastest steps."""

NUM_SIZES = 33
"""Steps of fewer tokens are also averaged by size: kernels process tokens in groups, so the cost has jumps."""

MAX_NEW = 32
"""The number of steps that are counted together. A step reads all weights, so the processor's caches hold none of this
after it, and counting each step at once would take longer."""

MAX_SIZE_WEIGHT, LINE_WEIGHT, SIZE_DECAY = 8.0, 1.0, 0.9
"""In steps: the maximum weight of a size's average, the weight of the line in a prediction, and the factor by which the
weight of a size falls with each further `NUM_SIZES` steps."""


class StepCost:
    """The time of steps by their tokens: a line through the latest steps (an expectile, by weighted least squares), and
    averages of small steps of the same size."""

    def __init__(self) -> None:
        self._new: list[tuple[float, float]] = []
        self._seconds_per_token = 0.0
        self._size_weights = [0.0] * NUM_SIZES
        self._size_seconds = [0.0] * NUM_SIZES
        self._num_added = 0
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    @property
    def seconds_per_token(self) -> float:
        """The time of one more token in a step; 0 before the first step. The line is at least 0 s at 0 tokens."""
        self._count_new()
        return self._seconds_per_token

    def predict(self, num_tokens: float) -> float:
        """Returns the seconds of a step; 0 before the first step."""
        if self._new:
            self._count_new()
        return self._predict(num_tokens)

    def add(self, num_tokens: float, seconds: float) -> None:
        """Adds a step."""
        self._new.append((num_tokens, seconds))
        if len(self._new) == MAX_NEW:
            self._count_new()

    def _predict(self, num_tokens: float) -> float:
        line = max(0.0, self._seconds + self._seconds_per_token * (num_tokens - self._tokens))
        if num_tokens >= NUM_SIZES:
            return line
        size = round(num_tokens)
        weight = self._size_weights[size]
        return (weight * self._size_seconds[size] + LINE_WEIGHT * line) / (weight + LINE_WEIGHT)

    def _count_new(self) -> None:
        for num_tokens, seconds in self._new:
            self._count(num_tokens, seconds)
        self._new.clear()

    def _count(self, num_tokens: float, seconds: float) -> None:
        """The sums are Welford's, with weights that fade (West, 1979)."""
        weight = 1.0
        if self._weight and seconds > (expected := self._predict(num_tokens)):
            seconds, weight = min(seconds, OUTLIER * expected), SLOW_WEIGHT
        self._add_size(round(num_tokens), seconds, weight)
        self._weight = COST_DECAY * self._weight + weight
        deviation = num_tokens - self._tokens
        self._tokens += deviation * weight / self._weight
        self._seconds += (seconds - self._seconds) * weight / self._weight
        self._variance = COST_DECAY * self._variance + weight * deviation * (num_tokens - self._tokens)
        self._covariance = COST_DECAY * self._covariance + weight * deviation * (seconds - self._seconds)
        average, prior = self._seconds / self._tokens, PRIOR_VARIANCE * self._weight
        slope = (self._covariance + LEAST_COST * average * prior) / (self._variance + prior)
        self._seconds_per_token = min(max(slope, LEAST_COST * average), average)

    def _add_size(self, size: int, seconds: float, weight: float) -> None:
        weights, self._num_added = self._size_weights, self._num_added + 1
        weights[self._num_added % NUM_SIZES] *= SIZE_DECAY
        if size < NUM_SIZES:
            weights[size] = min(MAX_SIZE_WEIGHT, weights[size] + weight)
            self._size_seconds[size] += (seconds - self._size_seconds[size]) * weight / weights[size]
