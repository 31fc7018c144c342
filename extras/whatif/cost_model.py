"""The time of a step: a model of its size, fitted to measured steps by non-negative least squares.

The time of a step of decode rows alone depends on its number of rows (linear between the numbers in `CostModel.knots`),
plus a time per key that a row attends to. The time of a step with prefill chunks is the sum of a constant and a time
per decode row, key, chunk and token, and per key that a token of a chunk attends to.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from messages.columns import INT32
from messages.errors import UsageError
from messages.ring.steps import Batch

Array = NDArray[np.float64]

NUM_REFITS = 4
OUTLIER_DEVIATIONS, LEAST_OUTLIER = 4.0, 0.3
"""Steps whose relative error is further from the median one do not count in a refit: in median absolute deviations,
and at least. Decode steps are so many and so alike that without the second all others would be outliers."""
NUM_SWEEPS = 3000
MAX_SMALL_ROWS = 8
"""Each number of decode rows up to this is a knot, since tiles of a kernel cause jumps between them."""
NUM_STEPS_PER_KNOT = 8
NUM_STEPS_PER_TERM = 2


class StepSize(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The quantities that determine a step's time. Keys are those that all rows, or tokens, together attend to."""

    decode_rows: int
    """Draft tokens included."""
    decode_keys: int
    prefill_chunks: int = 0
    prefill_tokens: int = 0
    prefill_keys: int = 0


TERMS = ("prefill_step", "decode_row_beside_prefill", "decode_key", "prefill_chunk", "prefill_token", "prefill_key")
DECODE_KEY = TERMS.index("decode_key")


class MeasuredStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that took `seconds` until its end, from its plan or from the end of the previous step."""

    size: StepSize
    seconds: float


def size_of_step(batch: Batch) -> StepSize:
    """Returns the size of a planned step; each draft token counts as a decode row that shares the keys of its row."""
    contexts, lengths = (np.frombuffer(column, INT32) for column in (batch.context_lens, batch.query_lens))
    is_decode = np.arange(len(contexts)) < batch.num_decode_rows
    if batch.num_drafts:
        is_decode |= np.frombuffer(batch.num_drafts, INT32) > 0
    num_decode, decode_keys = int(lengths[is_decode].sum()), int((contexts[is_decode] + 1).sum())
    chunks = zip(contexts[~is_decode].tolist(), lengths[~is_decode].tolist(), strict=True)
    return with_chunks(num_decode, decode_keys, list(chunks))


def with_chunks(decode_rows: int, decode_keys: int, chunks: Sequence[tuple[int, int]]) -> StepSize:
    """Returns the size of a step with chunks, each (tokens before it, its own tokens)."""
    keys = sum(length * context + length * (length + 1) // 2 for context, length in chunks)
    return StepSize(decode_rows, decode_keys, len(chunks), sum(length for _, length in chunks), keys)


class CostModel(msgspec.Struct, frozen=True):
    """Seconds of a step of `knots[i]` decode rows, and of each of `TERMS`; how well they explain the measured steps.

    `median_error` and `p90_error` are relative, |predicted - measured| / predicted, over all measured steps.
    """

    knots: tuple[int, ...]
    knot_seconds: tuple[float, ...]
    term_seconds: tuple[float, ...]
    median_error: float = 0.0
    p90_error: float = 0.0

    @property
    def fit_text(self) -> str:
        """How well the model explains the steps, in words."""
        errors = f"{self.median_error:.0%} of the cost model, nine of ten within {self.p90_error:.0%}"
        return f"half of them are within {errors}"

    def predict(self, size: StepSize) -> float:
        """Returns the seconds that a step of this size takes."""
        if size.prefill_chunks:
            return sum(map(float.__mul__, self.term_seconds, _terms_of(size)))
        index, part = _place(self.knots, size.decode_rows)
        low, high = self.knot_seconds[index], self.knot_seconds[min(index + 1, len(self.knots) - 1)]
        return max(low + part * (high - low), 0.0) + self.term_seconds[DECODE_KEY] * size.decode_keys

    def kind_of(self, size: StepSize) -> int:
        """Returns 0 for a step with chunks, else the number of the knot at or below its decode rows, from 1 on."""
        return 0 if size.prefill_chunks else max(bisect_right(self.knots, size.decode_rows), 1)


def fit(steps: Sequence[MeasuredStep]) -> CostModel:
    """Returns the model with the least squared relative error and no term below 0.

    Outliers (a step during which something else had the processor) are left out, and the rest is fitted again.
    Raises `UsageError` if there are too few steps.
    """
    knots = _choose_knots(Counter(step.size.decode_rows for step in steps if not step.size.prefill_chunks))
    num_terms = len(knots) + len(TERMS)
    if not knots or len(steps) < NUM_STEPS_PER_TERM * num_terms:
        raise UsageError(
            f"{len(steps)} measured steps are too few for a cost model: it needs at least "
            f"{NUM_STEPS_PER_TERM * num_terms}, with steps of decode rows alone among them"
        )
    rows = np.array([_row(knots, step.size) for step in steps])
    measured = np.array([step.seconds for step in steps])
    is_kept, scale, found = np.ones(len(steps), bool), measured, np.zeros(num_terms)
    errors = np.zeros(len(steps))
    for _ in range(1 + NUM_REFITS):
        found = _least_squares(rows[is_kept] / scale[is_kept, None], measured[is_kept] / scale[is_kept])
        scale = np.maximum(rows @ found, 1e-9)
        errors = measured / scale - 1
        deviation = np.median(np.abs(errors - np.median(errors)))
        is_kept = np.abs(errors - np.median(errors)) <= max(OUTLIER_DEVIATIONS * deviation, LEAST_OUTLIER)
    seconds = found.tolist()
    median, p90 = np.quantile(np.abs(errors), (0.5, 0.9)).tolist()
    return CostModel(knots, tuple(seconds[: len(knots)]), tuple(seconds[len(knots) :]), median, p90)


def _choose_knots(num_steps: Counter[int]) -> tuple[int, ...]:
    """Returns the smallest measured number of rows, and the largest one up to each power of two.

    `num_steps` is how often each was measured. All small numbers that were measured often are chosen.
    """
    counts = sorted(num_steps)
    small = [count for count in counts if count <= MAX_SMALL_ROWS and num_steps[count] >= NUM_STEPS_PER_KNOT]
    return tuple(sorted({*counts[:1], *small, *({(count - 1).bit_length(): count for count in counts}).values()}))


def _place(knots: Sequence[int], count: int) -> tuple[int, float]:
    """Returns the knot at or below `count`, and the fraction of the way to the next one (above 1 beyond the last)."""
    if len(knots) == 1:
        return 0, 0.0
    index = min(max(bisect_right(knots, count) - 1, 0), len(knots) - 2)
    return index, (count - knots[index]) / (knots[index + 1] - knots[index])


def _terms_of(size: StepSize) -> tuple[float, ...]:
    """Returns the multiplicity of each of `TERMS` in a step with prefill chunks."""
    return (1.0, *map(float, msgspec.structs.astuple(size)))


def _row(knots: Sequence[int], size: StepSize) -> list[float]:
    if size.prefill_chunks:
        return [*(0.0 for _ in knots), *_terms_of(size)]
    row = [0.0] * (len(knots) + len(TERMS))
    index, part = _place(knots, size.decode_rows)
    row[index] = 1 - part
    if part:
        row[index + 1] = part
    row[len(knots) + DECODE_KEY] = float(size.decode_keys)
    return row


def _least_squares(rows: Array, right: Array) -> Array:
    """Returns x >= 0 with the least |rows @ x - right|², by coordinate descent (Franc et al., 2005)."""
    norms = np.linalg.norm(rows, axis=0)
    norms[norms == 0] = 1.0
    rows = rows / norms
    products, gradient = rows.T @ rows, -(rows.T @ right)
    found = np.zeros(len(norms))
    for _ in range(NUM_SWEEPS):
        before = found.copy()
        for index in range(len(found)):
            if products[index, index]:
                value = max(0.0, found[index] - gradient[index] / products[index, index])
                gradient += (value - found[index]) * products[index]
                found[index] = value
        if np.abs(found - before).max() <= 1e-9 * np.abs(found).max():
            break
    return found / norms
