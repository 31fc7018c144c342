"""Logprobs of prompt tokens, as a prompt task.

The logprob of a prompt token comes from the position before it, so it is known with the chunk that computes that
position. Such a request uses a cached prefix only as far as its logprobs are known.
"""

from array import array
from collections.abc import Sequence

from messages.columns import INT32, num_int32, unpack_int32
from messages.ring.replies import PromptLogprobs
from messages.ring.requests import UserMsg
from messages.ring.spans import PromptSpan
from messages.ring.steps import WITH_LOGPROB, LogprobColumns, PromptLogprobTargets
from scheduler_proc.deciding.sampling.logprob_columns import has_nan, join, join_known, without_logprobs
from scheduler_proc.deciding.tasks.prompt_task import PromptTask, TaskChunk, TaskKind


class PromptLogprobsTask(PromptTask):
    """The known logprobs of one prompt's tokens, without the first token. Positions of spans have none.

    The logprob of target i is known with position i.
    """

    def __init__(self, prompt_ids: "array[int]", num_top: int, spans: Sequence[PromptSpan] = ()):
        self._target_ids = prompt_ids[1:]
        self._spans = spans
        self.num_top = num_top
        self._parts: list[LogprobColumns] = []
        super().__init__(PROMPT_LOGPROBS, end=len(self._target_ids))

    def targets(self, span: range) -> "array[int]":
        return self._target_ids[span.start : span.stop]

    def add(self, entries: LogprobColumns) -> bool:
        """Adds the next tokens' logprobs, which have at least `num_top` alternatives. Returns False if one is NaN."""
        count = num_int32(entries.token_ids)
        next_targets = self.targets(range(self.num_known, self.num_known + count))
        assert entries.token_ids == next_targets.tobytes(), "these are the logprobs of other tokens"
        self._parts.append(entries)
        self.num_known += count
        return not has_nan(entries)

    def pop_reply(self, uid: int, attempt: int) -> PromptLogprobs:
        parts, self._parts = self._parts, []
        targets = [range(max(0, span.start - 1), span.end - 1) for span in self._spans]
        return PromptLogprobs(uid, attempt, without_logprobs(join(parts, self.num_top), targets))


def _find(message: UserMsg) -> PromptLogprobsTask | None:
    num_top = message.sampling_params.num_prompt_logprobs
    return None if num_top is None else PromptLogprobsTask(unpack_int32(message.input_ids), num_top, message.spans)


def _pack(chunks: Sequence[TaskChunk[PromptLogprobsTask]]) -> PromptLogprobTargets:
    token_indices, target_ids = array(INT32), array(INT32)
    for task, start, end, first_index in chunks:
        span, offset = task.span(start, end), first_index - start
        token_indices.extend(range(offset + span.start, offset + span.stop))
        target_ids += task.targets(span)
    num_top = max(chunk.task.num_top for chunk in chunks)
    return PromptLogprobTargets(token_indices.tobytes(), target_ids.tobytes(), num_top)


PROMPT_LOGPROBS = TaskKind("prompt_logprobs", _find, _pack, WITH_LOGPROB, join_known)
