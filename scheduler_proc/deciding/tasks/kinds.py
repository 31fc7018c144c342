"""The kinds of prompt tasks."""

from array import array

from messages.ring.requests import SamplingParams
from scheduler_proc.deciding.tasks.pooling import POOLED
from scheduler_proc.deciding.tasks.prompt_logprobs import PROMPT_LOGPROBS
from scheduler_proc.deciding.tasks.prompt_task import PromptTask, TaskKind

KINDS: tuple[TaskKind, ...] = (PROMPT_LOGPROBS, POOLED)


def find_task(params: SamplingParams, token_ids: "array[int]", num_prompt_tokens: int) -> PromptTask | None:
    """Returns the task of a request whose first `num_prompt_tokens` are the prompt, `None` if it has none."""
    tasks = (kind.find(params, token_ids, num_prompt_tokens) for kind in KINDS)
    return next((task for task in tasks if task is not None), None)
