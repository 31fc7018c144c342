"""A row's changes to its logits: as the columns of a step, and done in plain Python."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from messages.columns import pack_float32, pack_int32
from messages.ring.steps import LogitsProcessing


@dataclass(frozen=True)
class RowProcessing:
    """`allowed_ids` and `grammar_ids` None: all tokens. `num_prompt` of the `history`, the first, are the prompt."""

    allowed_ids: tuple[int, ...] | None = None
    biases: tuple[tuple[int, float], ...] = ()
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    history: tuple[int, ...] = ()
    num_prompt: int = 0
    grammar_ids: tuple[int, ...] | None = None

    @property
    def has_penalty(self) -> bool:
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)

    @property
    def has_any(self) -> bool:
        return self.allowed_ids is not None or self.grammar_ids is not None or bool(self.biases) or self.has_penalty


def plan_logits_processing(rows: Sequence[RowProcessing], vocab_size: int) -> LogitsProcessing | None:
    """Returns the columns of a step with these rows, `None` if no row has any."""
    if not any(row.has_any for row in rows):
        return None
    allowed = [(index, row.allowed_ids) for index, row in enumerate(rows) if row.allowed_ids is not None]
    masked = [(index, row.grammar_ids) for index, row in enumerate(rows) if row.grammar_ids is not None]
    biases = [(index, *bias) for index, row in enumerate(rows) for bias in row.biases]
    penalized = [(index, row) for index, row in enumerate(rows) if row.has_penalty]
    return LogitsProcessing(
        allowed_rows=pack_int32(index for index, _ in allowed),
        num_allowed=pack_int32(len(ids) for _, ids in allowed),
        allowed_ids=pack_int32(token for _, ids in allowed for token in ids),
        bias_rows=pack_int32(index for index, _, _ in biases),
        bias_ids=pack_int32(token for _, token, _ in biases),
        bias_values=pack_float32(value for _, _, value in biases),
        penalty_rows=pack_int32(index for index, _ in penalized),
        repetition_penalties=pack_float32(row.repetition for _, row in penalized),
        frequency_penalties=pack_float32(row.frequency for _, row in penalized),
        presence_penalties=pack_float32(row.presence for _, row in penalized),
        num_history=pack_int32(len(row.history) for _, row in penalized),
        num_history_prompt=pack_int32(row.num_prompt for _, row in penalized),
        history_ids=pack_int32(token for _, row in penalized for token in row.history),
        bitmask_rows=pack_int32(index for index, _ in masked),
        bitmasks=b"".join(_bitmask(ids, vocab_size) for _, ids in masked),
        num_mask_words=-(-vocab_size // 32),
    )


def _bitmask(ids: Sequence[int], vocab_size: int) -> bytes:
    return sum(1 << token for token in set(ids)).to_bytes(4 * -(-vocab_size // 32), "little")


def processed_logits(logits: Sequence[float], row: RowProcessing) -> list[float]:
    """Returns the row's logits after allowed tokens, the grammar, biases, and the penalties in vLLM's order."""
    processed = list(logits)
    for ids in (row.allowed_ids, row.grammar_ids):
        if ids is not None:
            processed = [logit if token in ids else -math.inf for token, logit in enumerate(processed)]
    for token, value in row.biases:
        processed[token] += value
    for token in set(row.history):
        processed[token] *= row.repetition if processed[token] <= 0 else 1 / row.repetition
    for token, count in Counter(row.history[row.num_prompt :]).items():
        processed[token] -= row.frequency * count + row.presence
    return processed
