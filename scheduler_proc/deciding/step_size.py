"""How many tokens a step with prompts has: fewer than the limit if that many take long and one group has many prompts.

A request that arrives during a step gets its first token with the next one: next to a request of any size it waits for
two steps at most. No token depends on the size: a prompt may be cut anywhere.
"""

STEP_S = 0.25
"""The aim for the time of a step with prompts."""

MIN_TOKENS = 64
"""Smaller steps are less efficient."""

NUM_LARGE_STEPS = 2
"""A group with more prompt tokens than this number of whole steps makes steps short; smaller ones end soon anyway."""

MULTIPLE = 32
"""Kernels compute tokens in blocks."""

SMOOTHING = 0.5


class StepSize:
    """Follows the speed of steps with prompts, which depends on the model, the machine, and what prompts need."""

    def __init__(self, max_num_tokens: int):
        self._max_num_tokens = max_num_tokens
        self._tokens_per_s = 0.0
        self.num_tokens = max_num_tokens
        """The number of tokens for the next step."""

    def record_time(self, num_tokens: int, seconds: float) -> None:
        """Records a step with prompts. A small, quick one is ignored: it costs more for each token."""
        if seconds <= 0 or (seconds < STEP_S and num_tokens * 2 < self.num_tokens):
            return
        tokens_per_s, before = num_tokens / seconds, self._tokens_per_s
        self._tokens_per_s = before + (tokens_per_s - before) * SMOOTHING if before else tokens_per_s
        most = self._max_num_tokens
        self.num_tokens = min(most, max(MIN_TOKENS, int(self._tokens_per_s * STEP_S) // MULTIPLE * MULTIPLE))
