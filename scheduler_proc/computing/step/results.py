"""What is computed behind the forward pass of a step, on the device and then in the host's memory.

Shape legend: S rows that sample, N tokens that go to the head, E embedding size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from messages.steps import Batch, ForwardOutput
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.sampling.logprobs import TokenScores, score_rows, score_targets, to_columns
from scheduler_proc.computing.sampling.plan import SamplingPlan
from scheduler_proc.computing.sampling.sampler import choose_planned


@dataclass(frozen=True)
class StepResult:
    """Next tokens and the logprobs that are wanted."""

    tokens: Tensor
    """int32 [S], -1: the row has none."""
    logprobs: TokenScores | None
    prompt_logprobs: TokenScores | None

    def tensors(self) -> list[Tensor]:
        scores = [scores for scores in (self.logprobs, self.prompt_logprobs) if scores is not None]
        return [self.tokens, *(tensor for parts in scores for tensor in parts)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "StepResult":
        """Returns the same result with other tensors, in the order of `tensors`."""
        tokens_S, *rest = tensors
        parts = iter(rest)

        def take(scores: TokenScores | None) -> TokenScores | None:
            return None if scores is None else TokenScores(*(next(parts) for _ in scores))

        return StepResult(tokens_S, take(self.logprobs), take(self.prompt_logprobs))

    def output(self, step_id: int) -> ForwardOutput:
        """Returns the message; the tensors must be in the host's memory."""
        tokens = self.tokens.numpy().tobytes()
        return ForwardOutput(step_id, tokens, to_columns(self.logprobs), to_columns(self.prompt_logprobs))


def compute_result(
    decoder: Decoder, hidden_NE: Tensor, batch: Batch, plan: SamplingPlan, tensors: Sequence[Tensor]
) -> StepResult:
    """Returns the result of a step on its device; `tensors` are the arrays of `plan` there."""
    num_sampled = batch.num_sampled
    logits_SV = decoder.logits(hidden_NE[:num_sampled])
    tokens_S = choose_planned(logits_SV, plan, tensors)
    logprobs = score_rows(logits_SV, tokens_S, plan, tensors)
    prompt_logprobs = score_targets(hidden_NE[num_sampled:], decoder, plan, tensors)
    return StepResult(tokens_S, logprobs, prompt_logprobs)
