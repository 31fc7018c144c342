"""The protocol of a task: a result that is computed from a prompt besides the next token.

A new kind of task is one file with a `TaskKind`, listed in `kinds.py`, and its fields in `Batch` and `ForwardOutput`.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from messages.ring.axes import Axis
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import SamplingParams


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


class TaskColumns(Protocol):
    """The columns of one step for all its tasks of one kind."""

    def add(self, task: Any, first_index: int, start: int, end: int) -> None:
        """Adds a chunk of positions `start` to `end`, whose first token is token `first_index` of the step."""
        ...

    def columns(self) -> Any:
        """Returns the field of `Batch`."""
        ...


class TaskKind(NamedTuple):
    """A kind of task. `field` is the name of its columns in `Batch` and of its result in `ForwardOutput`."""

    field: str
    find: Callable[[SamplingParams, "array[int]", int], PromptTask | None]
    """Returns the task of a request with these parameters, tokens and number of prompt tokens."""
    make_columns: Callable[[], TaskColumns]
    axis: Axis
    """The axis of the entries in a result."""
    join: Callable[[Sequence[Any]], Any]
    """Joins the results of the parts of a step that was run apart."""
