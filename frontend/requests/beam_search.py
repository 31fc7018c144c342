"""Beam search over tokens and their logprobs: which beams go on, which have finished, and when no better one can come.

The same as `generate(num_beams=…)` of transformers 5 (`GenerationMixin._beam_search`).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

EarlyStopping = bool | Literal["never"]


class BeamRules(NamedTuple):
    """`end_ids` end a beam, and so does its length `max_tokens`, in tokens of output."""

    width: int
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @property
    def num_logprobs(self) -> int:
        """How many of the likeliest tokens of each beam decide: were all `end_ids` among them, `width` could go on."""
        return self.width + len(self.end_ids)


class Beam(NamedTuple):
    """An output so far, and the logprobs of its tokens added up."""

    token_ids: tuple[int, ...]
    logprob: float


class FinishedBeam(NamedTuple):
    """An output with its end token, if it has one. `score` is its logprob by `length ** length_penalty`."""

    token_ids: tuple[int, ...]
    score: float


class BeamSearch:
    """Begins with one empty beam. `running` and `finished` are at most `width` each, the best ones, in their order."""

    def __init__(self, rules: BeamRules):
        self._rules = rules
        self.running = [Beam((), 0.0)]
        self.finished: list[FinishedBeam] = []
        self.is_over = False

    def advance(self, likeliest: Sequence[Iterable[tuple[int, float]]]) -> None:
        """Gives every running beam a token more: `likeliest` has (token id, logprob) of `num_logprobs` for each.

        Only those of the `width` best that end here have finished. Where two are equal, the first goes before.
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
        """Tells whether what goes on is given up. But for "never", that is by its score now: it may be wrong."""
        rules = self._rules
        if len(self.finished) < rules.width:
            return False
        if rules.early_stopping is True:
            return True
        is_longest_best = rules.early_stopping == "never" and rules.length_penalty > 0
        return self._score(self.running[0], rules.max_tokens if is_longest_best else None) <= self.finished[-1].score
