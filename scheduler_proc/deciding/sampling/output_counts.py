"""How many entries of a step's result belong to a row.

The counts decide which tokens of the step go to the head (`Batch.sample_tokens`, `hidden_tokens`), what is computed
after the forward pass, and how the `ForwardOutput` is read row by row.
"""

from typing import NamedTuple


class OutputCounts(NamedTuple):
    """The number of a row's entries in each part of the step's `ForwardOutput`."""

    num_tokens: int = 0
    """Next tokens: one is sampled after each of the row's last `num_tokens` tokens."""
    num_logprobs: int = 0
    """Next tokens with logprobs."""
    num_task: int = 0
    """Entries of the request's prompt task."""

    def limited(self, num_tokens: int) -> "OutputCounts":
        """Returns the counts of a row that got only `num_tokens` next tokens."""
        return self._replace(num_tokens=num_tokens, num_logprobs=min(self.num_logprobs, num_tokens))
