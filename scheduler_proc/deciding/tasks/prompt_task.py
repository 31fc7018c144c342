"""The base of a task: a result that is computed from a prompt besides the next token.

A new kind of task is one file with a `TaskKind`, listed in `kinds.py`, and its fields in `Batch` and `ForwardOutput`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from messages.ring.axes import Axis
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import UserMsg

T = TypeVar("T")


class PromptTask(ABC):
    """The task of one request and the part of its result that is known. It outlives a preemption.

    A request with `max_tokens` 0 ends without sampling, as soon as its task `is_complete`.
    """

    def __init__(self, kind: "TaskKind", end: int, num_known: int = 0):
        self.kind = kind
        self.num_known = num_known
        """The number of prompt tokens that the task no longer needs, so that their pages may be cached ones."""
        self._end = end
        """The number of prompt tokens that it needs, from the first one on."""

    @property
    def is_complete(self) -> bool:
        return self.num_known == self._end

    def span(self, start: int, end: int) -> range:
        """Returns the positions that a chunk of positions `start` to `end` (exclusive) computes for the task.

        Unknown ones before `start` are computed by the step in flight.
        """
        first = max(start, self.num_known)
        return range(first, max(first, min(end, self._end)))

    def count(self, start: int, end: int) -> int:
        """Returns the number of entries that a chunk of positions `start` to `end` (exclusive) adds to the result."""
        return len(self.span(start, end))

    @abstractmethod
    def add(self, entries: Any) -> bool:
        """Adds the next entries of the result. Returns False if one is not finite."""

    @abstractmethod
    def pop_reply(self, uid: int, attempt: int) -> ToDetokenizer:
        """Returns the complete result and forgets it."""


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
