"""Calls in Python syntax: `[get_weather(city="Rome", days=2), now()]`."""

import ast
import keyword
import re
import warnings
from typing import Any

from frontend.parsing.argument_json import write_arguments
from frontend.parsing.call_scanner import SPACE, CallScanner, NotACallError, Steps

NAME_CHARACTER = re.compile(r"[\w.]")
STRUCTURE = re.compile(r"""[()\[\]{}"']""")
TOKEN = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|[()\[\]{},"']""", re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
WORD = re.compile(rf"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\b(?:{"|".join(keyword.kwlist)})(?=\s*=)""", re.DOTALL)
"""A string, or a parameter whose name is a keyword of Python."""
ESCAPES = {ord("\n"): "\\n", ord("\r"): "\\r", 0: "\\0"}
"""Escapes of the characters that models write into strings, but Python does not allow there."""
NO_KEYWORD = "_no_keyword"
JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicCalls(CallScanner):
    """A list of calls of functions with literals as arguments."""

    separators = SPACE + ",;[]"
    _begun: tuple[str, list[str]] = "", []
    """The name of the call that is read, and its arguments so far."""

    def _read(self) -> Steps:
        while True:
            character = yield from self._skip(self.separators)
            name = ""
            while NAME_CHARACTER.match(character):
                name += character
                self._place += 1
                yield from self._wait()
                character = self._text[self._place]
            if character != "(" or not name or not self._is_known(name):
                raise NotACallError
            pieces: list[str] = []
            self._begun = name, pieces
            yield from self._pass_parentheses(pieces)
            self._begun = "", []
            self._add_call(name, _to_json("".join(pieces)))
            self._leave_call()

    def finish(self, *, is_cut: bool) -> str:
        text = super().finish(is_cut=is_cut)
        name, pieces = self._begun
        if not is_cut or not name:
            return text
        arguments = _begun_json("".join(pieces))
        if arguments:
            return "" if self._show_cut(name, arguments) else text
        self._deltas.num_broken += 1
        return text

    def _pass_parentheses(self, pieces: list[str]) -> Steps:
        depth = 0
        while True:
            yield from self._wait()
            match = STRUCTURE.search(self._text, self._place)
            self._pass_to(match.end() if match else len(self._text), pieces)
            if match is None:
                continue
            if match[0] in "\"'":
                yield from self._pass_string(match[0], pieces)
            else:
                depth += 1 if match[0] in "([{" else -1
            if depth == 0:
                return

    def _pass_string(self, quote: str, pieces: list[str]) -> Steps:
        """Moves from after a string's opening quote to after its closing quote."""
        self.is_in_string = True
        while True:
            yield from self._wait()
            character = self._text[self._place]
            self._pass_to(self._place + 1, pieces)
            if character == quote:
                yield from self._leave_string()
                return
            if character == "\\":
                yield from self._wait()
                self._pass_to(self._place + 1, pieces)

    def _pass_to(self, end: int, pieces: list[str]) -> None:
        pieces.append(self._text[self._place : end])
        self._place = end


def _begun_json(arguments: str) -> str:
    """Returns the beginning of the arguments as JSON, "" if none has a value yet."""
    ends: list[str] = []
    last_comma = 0
    for token in TOKEN.finditer(arguments):
        match token[0]:
            case "(" | "[" | "{" as bracket:
                ends.append(CLOSING[bracket])
            case ")" | "]" | "}":
                del ends[-1:]
            case '"' | "'" as quote:
                ends.append(quote)
                break
            case "," if len(ends) == 1:
                last_comma = token.start()
            case _:
                pass
    for text, num_added in ((arguments + "".join(reversed(ends)), len(ends)), (arguments[:last_comma] + ")", 1)):
        try:
            begun = _to_json(text)[:-num_added]
        except NotACallError:
            continue
        return begun if begun.strip("{") else ""
    return ""


def _to_json(arguments: str) -> str:
    """Returns `(name=literal, …)` as a JSON object. Raises `NotACallError` for any other text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that Python does not know
            call = ast.parse("f" + WORD.sub(_to_python, arguments), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise NotACallError
        values = {argument.arg: _value_of(argument.value) for argument in call.keywords}
        if None in values:
            raise NotACallError
        return write_arguments({(name or "").removesuffix(NO_KEYWORD): value for name, value in values.items()})
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise NotACallError from None


def _to_python(word: re.Match[str]) -> str:
    return word[0].translate(ESCAPES) if word[1] else word[0] + NO_KEYWORD


def _value_of(node: ast.expr) -> Any:
    """Returns the value of a literal, which may also contain `true`, `false` and `null`."""
    match node:
        case ast.Name(id=("true" | "false" | "null") as name):
            return JSON_NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value_of(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {ast.literal_eval(key or node): _value_of(value) for key, value in zip(keys, values, strict=True)}
        case _:
            return ast.literal_eval(node)
