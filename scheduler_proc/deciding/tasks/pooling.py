"""A vector, the logits of classes or the logprobs of labels from a prompt's hidden states, as a prompt task.

If only the last token is pooled, as for labels, the request uses a cached prefix like any other one. A mean needs all
tokens: each chunk's step returns their sum so far, with which the next chunk's step continues.
"""

import math
from collections.abc import Sequence
from typing import Literal

from messages.columns import num_int32, pack_int32, unpack_float32, unpack_int32
from messages.ring.axes import join_columns
from messages.ring.replies import PooledReply
from messages.ring.requests import Pooling, SamplingParams, UserMsg
from messages.ring.steps import POOLED_KINDS, POOLING_WAYS, VECTOR, PooledColumns, PooledRows
from scheduler_proc.deciding.tasks.prompt_task import PromptTask, TaskChunk, TaskKind

Chunking = Literal["any", "in turn", "none"]
"""How a prompt may be computed in chunks: in any way; only after the result of the chunk before it; not at all."""


def chunking_of(params: SamplingParams) -> Chunking:
    pooling = params.pooling
    if pooling is None:
        return "any"
    if pooling.is_whole:
        return "none"
    return "in turn" if pooling.kind in ("embed", "classify") and pooling.way not in ("last", "cls") else "any"


class PoolingTask(PromptTask):
    """The known part of one prompt's result."""

    def __init__(self, pooling: Pooling, num_prompt_tokens: int):
        self.pooling = pooling
        self.way = "last" if pooling.kind == "labels" else pooling.way
        self.is_by_token = pooling.kind == "token_embed"
        self.first = num_prompt_tokens - 1 if self.way == "last" and not self.is_by_token else 0
        """The first position that is pooled."""
        end = 1 if self.way == "cls" and not self.is_by_token else num_prompt_tokens
        super().__init__(POOLED, end, num_known=self.first)
        self.carried = b""
        """The sum or maximum over the known positions, if more follow."""
        self._vectors: list[PooledColumns] = []

    def is_last(self, span: range) -> bool:
        """True if the result is complete after these positions."""
        return span.stop == self._end

    def count(self, start: int, end: int) -> int:
        num_tokens = super().count(start, end)
        return num_tokens if self.is_by_token else min(1, num_tokens)

    def add(self, entries: PooledColumns) -> bool:
        """Adds the next vectors. Returns False if a number is not finite; a logprob may be -inf."""
        self.num_known += sum(unpack_int32(entries.num_tokens))
        if self.is_by_token or self.is_complete:
            self._vectors.append(entries)
        else:
            self.carried = entries.values
        total = sum(unpack_float32(entries.values))
        return math.isfinite(total) or (self.pooling.kind == "labels" and total == -math.inf)

    def pop_reply(self, uid: int, attempt: int) -> PooledReply:
        vectors, self._vectors = join_columns(self._vectors), []
        return PooledReply(uid, attempt, vectors.values, num_int32(vectors.sizes))


def _find(message: UserMsg) -> PoolingTask | None:
    pooling = message.sampling_params.pooling
    return None if pooling is None else PoolingTask(pooling, num_int32(message.input_ids))


def _pack(chunks: Sequence[TaskChunk[PoolingTask]]) -> PooledRows:
    return join_columns([_pack_row(task, start, end, first_index) for task, start, end, first_index in chunks])


def _pack_row(task: PoolingTask, start: int, end: int, first_index: int) -> PooledRows:
    span, pooling = task.span(start, end), task.pooling
    is_done = task.is_by_token or task.is_last(span)
    label_ids = pooling.label_ids if pooling.kind == "labels" else b""
    numbers = (
        first_index - start + span.start,
        len(span),
        span.start - task.first,
        POOLED_KINDS.index(pooling.kind if is_done else "part"),
        POOLING_WAYS.index(task.way),
        pooling.dimensions,
        int(bool(pooling.normalizes)),
        pooling.second_start,
        num_int32(task.carried),
        num_int32(label_ids),
    )
    return PooledRows(*(pack_int32([number]) for number in numbers), carried=task.carried, label_ids=label_ids)


def _join(parts: Sequence[PooledColumns | None]) -> PooledColumns | None:
    known = [part for part in parts if part is not None]
    return join_columns(known) if known else None


POOLED = TaskKind("pooled", _find, _pack, VECTOR, _join)
