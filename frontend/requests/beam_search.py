"""Beam search over tokens and their logprobs: which beams continue, which have finished, and when the search ends.

Same results as `generate(num_beams=…)` of transformers 5 (`GenerationMixin._beam_search`).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

EarlyStopping = bool | Literal["never"]


class BeamRules(NamedTuple):
    """A beam ends with one of `end_ids`, or at `max_tokens` output tokens."""

    width: int
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @property
    def num_logprobs(self) -> int:
        """Most likely tokens needed per beam: even if all `end_ids` are among them, `width` tokens remain."""
        return self.width + len(self.end_ids)


class Beam(NamedTuple):
    """A partial output and the sum of its tokens' logprobs."""

    token_ids: tuple[int, ...]
    logprob: float


class FinishedBeam(NamedTuple):
    """An output with its end token, if any. `score` is the logprob divided by `length ** length_penalty`."""

    token_ids: tuple[int, ...]
    score: float


class BeamSearch:
    """Starts with one empty beam. `running` and `finished` have at most `width` beams each, best first."""

    def __init__(self, rules: BeamRules):
        self._rules = rules
        self.running = [Beam((), 0.0)]
        self.finished: list[FinishedBeam] = []
        self.is_over = False

    def advance(self, likeliest: Sequence[Iterable[tuple[int, float]]]) -> None:
        """Extends every running beam by a token. `likeliest` has `num_logprobs` pairs (token id, logprob) per beam.

        A beam that ends counts as finished only if it is among the `width` best. Ties keep their order.
        """
        width = self._rules.width
        candidates = [
            Beam((*beam.token_ids, token_id), beam.logprob + logprob)
            for beam, tokens in zip(self.running, likeliest, strict=True)
            for token_id, logprob in tokens
        ]
        candidates.sort(key=lambda beam: -beam.logprob)
        finished = [FinishedBeam(beam.token_ids, self._score(beam)) for beam in candidates[:width] if self._ends(beam)]
        self.finished = sorted(self.finished + finished, key=lambda beam: -beam.score)[:width]
        self.running = [beam for beam in candidates if not self._ends(beam)][:width]
        self.is_over = not self.running or self._is_decided()

    def _ends(self, beam: Beam) -> bool:
        return len(beam.token_ids) >= self._rules.max_tokens or beam.token_ids[-1] in self._rules.end_ids

    def _score(self, beam: Beam, length: int | None = None) -> float:
        return beam.logprob / (length or len(beam.token_ids)) ** self._rules.length_penalty

    def _is_decided(self) -> bool:
        """True if the running beams are given up; unless stopping is "never", this uses their present score."""
        rules = self._rules
        if len(self.finished) < rules.width:
            return False
        if rules.early_stopping is True:
            return True
        is_longest_best = rules.early_stopping == "never" and rules.length_penalty > 0
        return self._score(self.running[0], rules.max_tokens if is_longest_best else None) <= self.finished[-1].score
