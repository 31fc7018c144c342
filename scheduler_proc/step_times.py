"""How long steps take and how large they are, as the frontend shows it."""

from messages.histograms import HistogramCounts
from messages.steps import Batch
from runtime.histograms import Histogram


class StepTimes:
    """Distributions over all steps since the process started."""

    def __init__(self) -> None:
        self._seconds = Histogram("step_seconds")
        self._rows = Histogram("step_rows")
        self._tokens = Histogram("step_tokens")

    def add(self, batch: Batch, seconds: float) -> None:
        """Counts one step; `seconds` from its plan to its result."""
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
