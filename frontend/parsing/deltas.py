"""The deltas into which the parser splits an answer."""

from collections.abc import Collection
from typing import NamedTuple

from frontend.parsing.argument_json import is_object


class Content(NamedTuple):
    """Text for the reader of the answer."""

    text: str


class Reasoning(NamedTuple):
    """The model's reasoning before its answer."""

    text: str


class CallStart(NamedTuple):
    """The start of call `call_index` of the answer; its arguments follow."""

    call_index: int
    name: str


class CallArguments(NamedTuple):
    """More arguments of call `call_index`: JSON, exactly as written if the model wrote JSON."""

    call_index: int
    text: str


class CallBroken(NamedTuple):
    """Call `call_index`, which a stream has begun to show, is incomplete or malformed."""

    call_index: int


Delta = Content | Reasoning | CallStart | CallArguments | CallBroken


class Deltas:
    """Collects the deltas of an answer, and merges consecutive pieces of the same kind.

    With `is_streamed`, a call is shown as it is written, otherwise once it is complete, or cut with the answer. The
    arguments of `custom` tools need not be valid JSON.
    """

    def __init__(self, *, is_streamed: bool = True, custom: Collection[str] = ()) -> None:
        self._is_streamed = is_streamed
        self._custom = custom
        self.is_draft = False
        """Only a complete call is shown; it ends the draft."""
        self._waiting: list[Delta] = []
        self._pieces: list[str] = []
        """The text of the last delta."""
        self._name = ""
        self._arguments: list[str] = []
        self.num_calls = 0
        """Calls that have been shown, complete or not."""
        self.num_broken = 0
        """Calls that began but are incomplete or malformed, shown or not."""

    @property
    def is_streamed(self) -> bool:
        return self._is_streamed and not self.is_draft

    def pop_all(self) -> list[Delta]:
        self._join()
        waiting, self._waiting = self._waiting, []
        return waiting

    def add_text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if text:
            self._grow(kind(text))

    def accepts(self, name: str, arguments: str) -> bool:
        """True if a client can use a call with these arguments."""
        return name in self._custom or is_object(arguments)

    def begin_call(self, name: str) -> None:
        self._name = name
        self._arguments.clear()
        if self.is_streamed:
            self._show_call()

    def add_arguments(self, text: str) -> None:
        """Adds to the arguments of the call that was begun last."""
        self._arguments.append(text)
        if self.is_streamed:
            self._show_arguments(text)

    def end_call(self) -> bool:
        """Ends the latest call; False if its arguments are malformed."""
        arguments = "".join(self._arguments)
        if not self.accepts(self._name, arguments):
            self.break_call()
            return False
        if not self.is_streamed:
            self._show_call()
            self._show_arguments(arguments)
        self.is_draft = False
        return True

    def break_call(self, *, is_cut: bool = False) -> bool:
        """Marks the latest call as incomplete or malformed. True if it is shown nevertheless.

        `is_cut`: the answer was cut within its arguments.
        """
        if self.is_draft:
            return False
        self.num_broken += 1
        if is_cut and not self.is_streamed:
            self._show_call()
            self._show_arguments("".join(self._arguments))
        if is_cut or self.is_streamed:
            self._add(CallBroken(self.num_calls - 1))
        return is_cut or self.is_streamed

    def _show_call(self) -> None:
        self._add(CallStart(self.num_calls, self._name))
        self.num_calls += 1

    def _show_arguments(self, text: str) -> None:
        if text:
            self._grow(CallArguments(self.num_calls - 1, text))

    def _grow(self, delta: Content | Reasoning | CallArguments) -> None:
        """Adds `delta`, or only its text if the last delta is of the same kind."""
        if not self._waiting or type(self._waiting[-1]) is not type(delta):
            self._add(delta)
        self._pieces.append(delta.text)

    def _add(self, delta: Delta) -> None:
        self._join()
        self._waiting.append(delta)

    def _join(self) -> None:
        if self._pieces:
            self._waiting[-1] = self._waiting[-1]._replace(text="".join(self._pieces))
            self._pieces.clear()
