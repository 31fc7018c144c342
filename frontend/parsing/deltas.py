"""What a parser makes of an answer's text, piece by piece."""

from typing import NamedTuple


class Content(NamedTuple):
    """Text for the reader of the answer."""

    text: str


class Reasoning(NamedTuple):
    """What the model thought before it answered."""

    text: str


class CallStart(NamedTuple):
    """Call number `call_index` of the answer begins; its arguments follow."""

    call_index: int
    name: str


class CallArguments(NamedTuple):
    """More of the arguments of call number `call_index`: JSON, as the model wrote it where it wrote JSON."""

    call_index: int
    text: str


Delta = Content | Reasoning | CallStart | CallArguments


class Deltas:
    """Collects the deltas of an answer; pieces of the same thing that follow each other are one."""

    def __init__(self) -> None:
        self._waiting: list[Delta] = []
        self.num_calls = 0

    def pop_all(self) -> list[Delta]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def add_text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, kind):
            self._waiting[-1] = kind(last.text + text)
        elif text:
            self._waiting.append(kind(text))

    def begin_call(self, name: str) -> None:
        self._waiting.append(CallStart(self.num_calls, name))
        self.num_calls += 1

    def add_arguments(self, text: str) -> None:
        """Adds to the arguments of the call that was begun last."""
        index = self.num_calls - 1
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, CallArguments):
            self._waiting[-1] = CallArguments(index, last.text + text)
        elif text:
            self._waiting.append(CallArguments(index, text))
