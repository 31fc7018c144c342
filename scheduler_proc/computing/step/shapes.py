"""The fixed shapes of steps that are captured as graphs, and which of them has room for a batch.

A shape is D places for decode rows and then T places for tokens of prefill rows: steps of decode rows alone have T = 0,
prefills D = 0, and mixed steps a small D or the largest, because empty places cost little compared with a second T.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from messages.config.server import Config
from messages.ring.steps import Batch
from scheduler_proc.computing.step.features.registry import FEATURES
from scheduler_proc.computing.step.inputs import NO_FEATURES, Role, StepFeature
from scheduler_proc.computing.step.packing import StepShape

MAX_PREFILL_TOKENS = 4096
"""Larger steps compute longer than launching their operations one by one takes."""

FEW_DECODE_ROWS = 32
"""A mixed step with this D takes as long as reading the weights; the largest D may take longer."""

PREFILL_TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, MAX_PREFILL_TOKENS)


ENCODER_STEP_TOKENS = 2048
"""The default for encoders: no row waits for its next token meanwhile, and larger products are faster."""


@dataclass(frozen=True)
class StepLimits:
    """The largest step: rows, tokens, and pages of a row; and the names of the features that steps may have."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_pages: int
    features: frozenset[str] = NO_FEATURES

    def of_model(self, config: Config, model: Any, role: Role) -> "StepLimits":
        """Returns the limits with the features that steps of a `ModelDescription` may have. Raises `BootError`."""
        return replace(self, features=frozenset(each.name for each in FEATURES if each.limit(config, model, role)))

    @cached_property
    def required(self) -> Sequence[StepFeature[Any]]:
        """The features that all steps have."""
        return [each for each in FEATURES if each.name in self.features and each.captured == "always"]

    @cached_property
    def optional(self) -> Sequence[StepFeature[Any]]:
        """The features that some steps have."""
        return [each for each in FEATURES if each.name in self.features and each.captured != "always"]

    @cached_property
    def captures(self) -> Sequence[frozenset[str]]:
        """The sets of features that steps are captured with, the largest first, the smallest last."""
        found = [frozenset(feature.name for feature in self.required)]
        for feature in self.optional:
            if feature.captured == "both":
                found = [*(features | {feature.name} for features in found), *found]
        return found

    def find_capture(self, batch: Batch, decoder: Any) -> frozenset[str] | None:
        """Returns the features of the capture that serves a step; `None` if it is computed call by call."""
        found = [feature for feature in self.optional if feature.is_in(batch)]
        if not all(feature.captured == "both" and feature.can_replay(decoder) for feature in found):
            return None
        return self.captures[-1].union(feature.name for feature in found)


def limit_steps(config: Config, default_tokens: int, num_pages: int) -> StepLimits:
    """Returns the limits that flags set; a step of an encoder has room for a whole prompt of any length."""
    scheduling, facts = config.scheduling, config.facts
    num_tokens = scheduling.max_num_batched_tokens or default_tokens
    if facts.pooling is not None and facts.pooling.is_encoder:
        default_tokens = max(default_tokens, ENCODER_STEP_TOKENS)
        num_tokens = max(scheduling.max_num_batched_tokens or default_tokens, facts.max_model_len)
    return StepLimits(scheduling.max_num_seqs, num_tokens, num_pages)


class StepShapes:
    """Shapes with room for all steps within the limits except the largest prefills."""

    def __init__(self, limits: StepLimits):
        self._limits = limits
        self._decode_rows = decode_row_counts(limits.max_num_seqs)
        self._mixed_rows = [count for count in (FEW_DECODE_ROWS, limits.max_num_seqs) if count <= limits.max_num_seqs]
        self._prefill_tokens = prefill_token_counts(limits.max_num_batched_tokens)

    def all(self) -> list[StepShape]:
        """Returns the shapes, the largest first: later ones reuse its memory. Each exists with each set of features."""
        sizes = [(rows, 0) for rows in self._decode_rows]
        sizes += [(rows, tokens) for rows in (0, *self._mixed_rows) for tokens in self._prefill_tokens]
        ordered = sorted(set(sizes), key=lambda size: (sum(size), size), reverse=True)
        return [self._shape(*size, features) for size in ordered for features in self._limits.captures]

    def largest(self) -> list[StepShape]:
        """Returns the largest shape for mixed steps, for prefills and for decode rows alone."""
        rows, max_tokens_per_step = self._limits.max_num_seqs, self._prefill_tokens[-1:]
        sizes = [*((size, tokens) for tokens in max_tokens_per_step for size in (rows, 0)), (rows, 0)]
        return [self._shape(*size, self._limits.captures[0]) for size in sizes]

    def find(self, batch: Batch, decoder: Any = None) -> StepShape | None:
        """Returns the smallest shape with room for `batch`; `None` if it is too large, or computed call by call."""
        rows = batch.num_decode_rows
        tokens = batch.num_tokens - rows
        is_too_large = tokens > max(self._prefill_tokens, default=0) or batch.num_sampled > self._limits.max_num_seqs
        features = self._limits.find_capture(batch, decoder)
        if is_too_large or batch.hidden_tokens or features is None:
            return None
        if tokens == 0:
            return self._shape(self.places(rows), 0, features)
        places = _at_least(self._mixed_rows, rows) if rows else 0
        return self._shape(places, _at_least(self._prefill_tokens, tokens), features)

    def places(self, num_decode_rows: int) -> int:
        """Returns the smallest number of places in a shape for `num_decode_rows` (at least 1)."""
        return _at_least(self._decode_rows, num_decode_rows)

    def _shape(self, num_decode_rows: int, num_prefill_tokens: int, features: frozenset[str]) -> StepShape:
        max_rows = self._limits.max_num_seqs
        num_prefill_rows = min(num_prefill_tokens, max_rows)
        num_head_tokens = min(num_decode_rows + num_prefill_rows, max_rows)
        sizes = num_decode_rows, num_prefill_tokens, num_prefill_rows, self._limits.num_pages, num_head_tokens
        return StepShape(*sizes, features=features)


def decode_row_counts(max_num_seqs: int) -> list[int]:
    """Returns 1, 2, 4, 8, 16, 24 … 256, 288 … `max_num_seqs`."""
    counts = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 32)]
    return [*(count for count in counts if count < max_num_seqs), max_num_seqs]


def prefill_token_counts(max_num_batched_tokens: int) -> list[int]:
    """Returns the counts of `PREFILL_TOKENS` that a step may have, the first one that is no less included."""
    return list(PREFILL_TOKENS[: bisect_left(PREFILL_TOKENS, max_num_batched_tokens) + 1])


def _at_least(counts: list[int], count: int) -> int:
    return counts[bisect_left(counts, count)]
