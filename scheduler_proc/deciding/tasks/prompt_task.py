"""The protocol of a task: a result that is computed from a prompt besides the next token.

A new kind of task is one file with a `TaskKind`, listed in `kinds.py`, and its fields in `Batch` and `ForwardOutput`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from messages.ring.axes import Axis
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import UserMsg

T = TypeVar("T")


class PromptTask(Protocol):
    """The task of one request and the part of its result that is known. It outlives a preemption.

    A request with `max_tokens` 0 ends without sampling, as soon as its task `is_complete`.
    """

    @property
    def kind(self) -> "TaskKind": ...

    @property
    def num_known(self) -> int:
        """The number of prompt tokens that the task no longer needs, so that their pages may be cached ones."""
        ...

    @property
    def is_complete(self) -> bool: ...

    def count(self, start: int, end: int) -> int:
        """Returns the number of entries that a chunk of positions `start` to `end` (exclusive) adds to the result."""
        ...

    def add(self, entries: Any) -> bool:
        """Adds the next entries of the result. Returns False if one is not finite."""
        ...

    def pop_reply(self, uid: int, attempt: int) -> ToDetokenizer:
        """Returns the complete result and forgets it."""
        ...


class TaskChunk(NamedTuple, Generic[T]):
    """Positions `start` to `end` (exclusive) of the prompt; the first is token `first_index` of the step."""

    task: T
    start: int
    end: int
    first_index: int


class TaskKind(NamedTuple):
    """A kind of task. `field` is the name of its columns in `Batch` and of its result in `ForwardOutput`."""

    field: str
    find: Callable[[UserMsg], PromptTask | None]
    """Returns the task of a request."""
    pack: Callable[[Sequence[TaskChunk[Any]]], Any]
    """Returns the field of `Batch` for the chunks of a step, at least one."""
    axis: Axis
    """The axis of the entries in a result."""
    join: Callable[[Sequence[Any]], Any]
    """Joins the results of the parts of a step that was run apart."""
