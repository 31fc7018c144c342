"""Calls in JSON: `{"name": …, "arguments": {…}}`, one, several or a list, or only the arguments."""

import json
import re
from collections.abc import Callable, Collection, Generator
from typing import Any

from frontend.parsing.argument_json import is_unicode
from frontend.parsing.call_scanner import SPACE, CallScanner, NotACallError, Steps
from frontend.parsing.deltas import Deltas

STRUCTURE = re.compile(r'[\[\]{}"]')
STRING_PART = re.compile(r'["\\]')
END_OF_SCALAR = re.compile(r"[,}\]\s]")
NO_ARGUMENTS = "{}"
ESCAPES = {code: json.dumps(chr(code))[1:-1] for code in range(32)}
"""Escapes of control characters: models write them unescaped into strings, which JSON does not allow."""

PassOn = Callable[[str], object]


class JsonCalls(CallScanner):
    """`name_key` has the name, any of `arguments_keys` the arguments; `None`: the first key is the name.

    With `known_names`, an object with another name or without arguments is not a call: no mark distinguishes a call
    from other JSON there.
    """

    separators = SPACE + ",;[]"

    def __init__(
        self,
        deltas: Deltas,
        opening: str,
        name_key: str | None,
        arguments_keys: Collection[str],
        known_names: Collection[str] | None,
    ):
        super().__init__(deltas, opening, known_names)
        self._name_key = name_key
        self._arguments_keys = arguments_keys

    def _read(self) -> Steps:
        while True:
            yield from self._expect("{", self.separators)
            yield from self._read_call()
            self._leave_call()

    def _read_call(self) -> Steps:
        """Parses an object, from after its opening brace."""
        name: str | None = None
        arguments = None if self._known_names is not None else NO_ARGUMENTS
        is_begun = False
        while (yield from self._skip(SPACE + ",")) != "}":
            key: Any = yield from self._read_string()
            yield from self._expect(":")
            character = yield from self._skip(SPACE)
            if self._name_key is None and name is None:
                name, key = self._checked_name(key), next(iter(self._arguments_keys))
            if key == self._name_key and name is None:
                name = self._checked_name((yield from self._read_string()))
            elif key in self._arguments_keys and character == "{" and name is not None and not is_begun:
                is_begun = True
                self._begin_call(name)
                yield from self._pass_container(self._add_arguments)
                self._end_call()
            elif key in self._arguments_keys and not is_begun:
                arguments = yield from self._read_arguments(character)
            else:
                yield from self._read_value(character)
        self._place += 1
        if is_begun:
            return
        if name is None or arguments is None or not self._deltas.accepts(name, arguments):
            raise NotACallError
        self._add_call(name, arguments)

    def _checked_name(self, name: str) -> str:
        if not name or not self._is_known(name):
            raise NotACallError
        return name

    def _read_arguments(self, character: str) -> Generator[None, None, str]:
        """Returns arguments that could not be passed on at once: the name is not known yet, or they are in a string."""
        if character == '"':
            return (yield from self._read_string()).strip() or NO_ARGUMENTS
        value = yield from self._read_value(character)
        if character != "{" and value != "null":
            raise NotACallError
        return NO_ARGUMENTS if value == "null" else value

    def _read_value(self, character: str) -> Generator[None, None, str]:
        """Returns the text of a value; `character` is its first character."""
        pieces: list[str] = []
        if character in "{[":
            yield from self._pass_container(pieces.append)
        elif character == '"':
            yield from self._pass_string(pieces.append)
        else:
            yield from self._pass_scalar(pieces.append)
        return "".join(pieces)

    def _read_string(self) -> Generator[None, None, str]:
        """Returns a string's value."""
        pieces: list[str] = []
        yield from self._pass_string(pieces.append)
        try:
            value = json.loads("".join(pieces), strict=False)
        except ValueError:
            raise NotACallError from None
        if not is_unicode(value):
            raise NotACallError
        return value

    def _pass_scalar(self, pass_on: PassOn) -> Steps:
        is_over = False
        while not is_over:
            yield from self._wait()
            is_over = self._pass_to(END_OF_SCALAR.search(self._text, self._place), pass_on, is_included=False)

    def _pass_string(self, pass_on: PassOn) -> Steps:
        """Moves past a string and passes on its text as it arrives."""
        if self._text[self._place] != '"':
            raise NotACallError
        self._pass_one(pass_on)
        self.is_in_string = True
        while True:
            yield from self._wait()
            match = STRING_PART.search(self._text, self._place)
            self._pass_to(match, lambda text: pass_on(text.translate(ESCAPES)))
            if match and match[0] == '"':
                yield from self._leave_string()
                return
            if match:
                yield from self._wait()
                self._pass_one(pass_on)

    def _pass_container(self, pass_on: PassOn) -> Steps:
        """Moves past an object or a list and passes on its text as it arrives."""
        depth = 0
        while True:
            yield from self._wait()
            match = STRUCTURE.search(self._text, self._place)
            if match and match[0] == '"':
                self._pass_to(match, pass_on, is_included=False)
                yield from self._pass_string(pass_on)
            elif self._pass_to(match, pass_on):
                depth += 1 if match and match[0] in "{[" else -1
                if depth == 0:
                    return

    def _pass_to(self, match: re.Match[str] | None, pass_on: PassOn, *, is_included: bool = True) -> bool:
        """Moves to `match`, or past it, or to the end of the text. True if there is a match."""
        end = len(self._text) if match is None else match.end() if is_included else match.start()
        text = self._text[self._place : end]
        self._place = end
        pass_on(text)
        return match is not None

    def _pass_one(self, pass_on: PassOn) -> None:
        self._place += 1
        pass_on(self._text[self._place - 1])


class JsonArguments(JsonCalls):
    """A region with the arguments of one call, whose mark contained its `name`."""

    def __init__(self, deltas: Deltas, opening: str, name: str, known_names: Collection[str] | None = None):
        super().__init__(deltas, opening, "", (), known_names)
        self._name = name
        self._num_opening = len(opening)

    def _read(self) -> Steps:
        if not self._is_known(self._name) or (yield from self._skip(SPACE)) != "{":
            raise NotACallError
        self._begin_call(self._name)
        yield from self._pass_container(self._add_arguments)
        self._end_call()
        self._leave_call()
        yield from self._skip(SPACE)
        raise NotACallError

    def finish(self, *, is_cut: bool) -> str:
        rest = super().finish(is_cut=is_cut)
        if is_cut or self.has_call or not self._is_known(self._name) or rest[self._num_opening :].strip():
            return rest
        self._add_call(self._name, NO_ARGUMENTS)
        return ""
