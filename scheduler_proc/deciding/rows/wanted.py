"""What a row wants of a step (`Req.wanted_in_prefill`, `wanted_in_decode`).

It decides which tokens of the step go to the head (`Batch.sample_tokens`, `hidden_tokens`), what is computed behind the
forward pass, and how the `ForwardOutput` is read row by row. A further kind of result, such as a pooled vector, has a
further count here.
"""

from typing import NamedTuple


class Wanted(NamedTuple):
    """How many entries of each part of the step's `ForwardOutput` are the row's."""

    num_tokens: int = 0
    """After so many of the row's tokens, the last ones, a next one is sampled."""
    num_logprobs: int = 0
    """Of how many of the next tokens the logprobs are wanted."""
    num_prompt_logprobs: int = 0
    """Of how many tokens of its prompt."""

    def limited(self, num_tokens: int) -> "Wanted":
        """Returns what is the row's where it got only so many tokens."""
        return self._replace(num_tokens=num_tokens, num_logprobs=min(self.num_logprobs, num_tokens))
