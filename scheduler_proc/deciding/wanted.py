"""What a row wants of a step. A request's task decides it; all there is today is to generate.

It decides which tokens of the step go to the head (`Batch.sample_tokens`, `PromptLogprobTargets`), what is computed
behind the forward pass, and how the `ForwardOutput` is read row by row. A row that wants a further kind of result, such
as a pooled vector, has a further count here.
"""

from typing import NamedTuple

from scheduler_proc.deciding.requests import Req


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


def wanted_in_prefill(req: Req, start: int, end: int) -> Wanted:
    """Returns what the prompt's tokens `start` to `end` (exclusive) want.

    A next token is sampled after the prompt's last one, where the request may have one.
    """
    progress = req.pending.prompt_logprobs
    num_prompt_logprobs = 0 if progress is None else len(progress.span(start, end))
    samples = end == len(req.token_ids) < req.pending.max_len
    wanted = wanted_in_decode(req) if samples else Wanted()
    return wanted._replace(num_prompt_logprobs=num_prompt_logprobs)


def wanted_in_decode(req: Req, num_drafts: int = 0) -> Wanted:
    """Returns what a row in DECODE wants that has so many draft tokens."""
    num_tokens = 1 + num_drafts
    return Wanted(num_tokens, num_tokens if req.pending.num_logprobs >= 0 else 0)
