"""The kinds of prompt tasks."""

from messages.ring.requests import UserMsg
from scheduler_proc.deciding.tasks.pooling import POOLED
from scheduler_proc.deciding.tasks.prompt_logprobs import PROMPT_LOGPROBS
from scheduler_proc.deciding.tasks.prompt_task import PromptTask, TaskKind

KINDS: tuple[TaskKind, ...] = (PROMPT_LOGPROBS, POOLED)


def find_task(message: UserMsg) -> PromptTask | None:
    """Returns the task of a request, `None` if it has none."""
    tasks = (kind.find(message) for kind in KINDS)
    return next((task for task in tasks if task is not None), None)
