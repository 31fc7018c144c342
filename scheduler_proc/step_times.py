"""Histograms of the duration and size of steps."""

from messages.control.histograms import HistogramCounts
from messages.ring.steps import Batch
from runtime.histograms import Histogram

LONG_STEP_TOKENS = 256
LONG_STEP_S = 0.05


class StepTimes:
    """Distributions over all steps since the process started."""

    def __init__(self) -> None:
        self._histograms = {name: Histogram(name) for name in ("step_seconds", "step_rows", "step_tokens")}
        self._last_s = 0.0

    def may_be_long(self, batch: Batch) -> bool:
        """True if a step may take so long that replies should be sent before it."""
        return batch.num_tokens >= LONG_STEP_TOKENS or self._last_s >= LONG_STEP_S

    def add(self, batch: Batch, seconds: float) -> None:
        """Counts one step; `seconds` from its plan to its result."""
        self._last_s = seconds
        for histogram, value in zip(
            self._histograms.values(), (seconds, batch.num_rows, batch.num_tokens), strict=True
        ):
            histogram.add(value)

    def counts(self) -> dict[str, HistogramCounts]:
        """Returns the distributions by name."""
        return {name: histogram.counts() for name, histogram in self._histograms.items()}
