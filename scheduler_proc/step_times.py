"""How long steps take and how large they are, as the frontend shows it."""

from messages.control.histograms import HistogramCounts
from messages.ring.steps import Batch
from runtime.histograms import Histogram

LONG_STEP_TOKENS = 256
LONG_STEP_S = 0.05


class StepTimes:
    """Distributions over all steps since the process started."""

    def __init__(self) -> None:
        self._seconds = Histogram("step_seconds")
        self._rows = Histogram("step_rows")
        self._tokens = Histogram("step_tokens")
        self._last_s = 0.0

    def may_be_long(self, batch: Batch) -> bool:
        """Tells whether a step may take so long that what is known before it should not wait for its result."""
        return batch.num_tokens >= LONG_STEP_TOKENS or self._last_s >= LONG_STEP_S

    def add(self, batch: Batch, seconds: float) -> None:
        """Counts one step; `seconds` from its plan to its result."""
        self._last_s = seconds
        self._seconds.add(seconds)
        self._rows.add(batch.num_rows)
        self._tokens.add(batch.num_tokens)

    def counts(self) -> dict[str, HistogramCounts]:
        """Returns the distributions by name."""
        return {
            "step_seconds": self._seconds.counts(),
            "step_rows": self._rows.counts(),
            "step_tokens": self._tokens.counts(),
        }
