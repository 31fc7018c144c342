"""Calls that can only be parsed as a whole, as described by transformers' response templates.

The rules are those of `transformers.utils.chat_parsing` (5.23): content parsers, then a transform that builds the call.
"""

# pyright: basic
# (values here are whatever JSON holds)

import json
import time
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import regex

from frontend.parsing.argument_json import is_unicode, write_arguments
from frontend.parsing.call_scanner import CallScanner, NotACallError, Steps, TextEndError
from frontend.parsing.deltas import Deltas
from frontend.parsing.loose_json import LooseReader
from frontend.parsing.marks import MAX_SEARCH_S
from frontend.parsing.schema_casts import cast_arguments, write_begun

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, TimeoutError, regex.error)
VALUE = "(?P<value>.*?)"
SPACE = regex.compile(r"\s*")
PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")


class WholeRule(msgspec.Struct, frozen=True):
    """How the text between two marks is parsed into calls: the entries of a response template's field."""

    content: str = "text"
    content_args: dict[str, Any] = {}
    transform: Any = None


class WholeCalls(CallScanner):
    """`captures`: the named groups of the opening mark. `tools`: the schema of each tool's parameters, by tool name."""

    knows_strings = False

    def __init__(
        self,
        deltas: Deltas,
        opening: str,
        rule: WholeRule,
        captures: dict[str, str],
        tools: Mapping[str, Any],
        known_names: Collection[str] | None,
    ):
        super().__init__(deltas, opening, known_names)
        self._rule = rule
        self._captures = captures
        self._tools = tools
        self._num_opening = len(opening)

    def _read(self) -> Steps:
        if not self._is_known(self._captures.get("name")):
            raise NotACallError
        while not self._is_complete:
            self._place = len(self._text)
            yield
        raise TextEndError

    def finish(self, *, is_cut: bool) -> str:
        text = super().finish(is_cut=is_cut)
        if is_cut:
            return "" if self._shows_begun(text[self._num_opening :]) else text
        try:
            value = _transform(parse_content(text[self._num_opening :], self._rule), self._rule, self._captures)
            calls = [self._read_one(call) for call in (value if isinstance(value, list) else [value])]
        except UNREADABLE:
            return text
        if not calls:
            return text
        for name, arguments in calls:
            self._add_call(name, arguments)
        return ""

    def _shows_begun(self, text: str) -> bool:
        """Shows the call that the answer was cut in, and returns True, if its arguments have begun."""
        try:
            name, _ = self._read_one(_transform({}, self._rule, self._captures))
            begun = _begun_arguments(text, self._rule, self._tools.get(name))
        except UNREADABLE:
            name = begun = ""
        if begun:
            return self._show_cut(name, begun)
        self._deltas.num_broken += 1
        return False

    def _read_one(self, call: Any) -> tuple[str, str]:
        """Returns name and arguments. Raises an exception if `call` is not a call."""
        function = call.get("function", call)
        name, arguments = function["name"], function.get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict | str) or not is_unicode(name):
            raise ValueError("no call")
        if isinstance(arguments, dict):
            arguments = write_arguments(cast_arguments(arguments, self._tools.get(name)))
        if not (is_unicode(arguments) and self._deltas.accepts(name, arguments) and self._is_known(name)):
            raise ValueError("no call")
        return name, arguments


def parse_content(text: str, rule: WholeRule) -> Any:
    """Returns the value of the text. Raises `ValueError` and other errors if it does not follow the rule."""
    arguments = rule.content_args
    match rule.content:
        case "json":
            return _parse_json(text, arguments)
        case "xml-inline":
            return _parse_tags(text, arguments)
        case _:
            return text.strip() if arguments.get("strip", True) else text


def _parse_json(text: str, arguments: dict[str, Any]) -> Any:
    """Parses JSON, optionally with `unquoted_keys` and strings between `string_delims`, as Gemma 4 writes it."""
    if arguments.get("string_delims") or arguments.get("unquoted_keys"):
        return json.loads(LooseReader(text, arguments.get("string_delims", ())).json)
    return json.loads(text)


def _begun_arguments(text: str, rule: WholeRule, schema: Any) -> str:
    """Returns the beginning of the arguments as JSON, "" if none have begun or they are written in another way."""
    if rule.content == "json":
        return LooseReader(text, rule.content_args.get("string_delims", ()), is_cut=True).json
    if rule.content != "xml-inline":
        return ""
    values, rest = _read_tags(text, rule.content_args)
    begun = write_arguments(cast_arguments(values, schema))[:-1] if values else ""
    before, _, behind = rule.content_args["tag_pattern"].partition(VALUE)
    rest = rest.lstrip()
    tag = regex.match(before, rest, regex.DOTALL, timeout=MAX_SEARCH_S) if behind else None
    if tag is None:
        return begun
    end = regex.search(behind, rest, regex.DOTALL, pos=tag.end(), partial=True, timeout=MAX_SEARCH_S)
    key, value = tag["key"], rest[tag.end() : end.start() if end else len(rest)]
    return f"{begun + ', ' if begun else '{'}{json.dumps(key)}: {write_begun(key, value, schema)}"


def _read_tags(text: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the values of consecutive `<key>value</key>` that match `tag_pattern`, and the text after them."""
    pattern = regex.compile(arguments["tag_pattern"], flags=regex.DOTALL)
    values: dict[str, Any] = {}
    end, deadline_s = 0, time.monotonic() + MAX_SEARCH_S
    while True:
        timeout_s = max(deadline_s - time.monotonic(), 0.001)
        space: Any = SPACE.match(text, end)
        start = space.end()
        match = pattern.match(text, start, timeout=timeout_s) or pattern.match(text, end, timeout=timeout_s)
        if match is None or match.end() == end:
            return values, text[end:]
        end = match.end()
        values[match["key"]] = match.groupdict().get("value") or ""


def _parse_tags(text: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Parses a sequence of tags. Raises `ValueError` for other text."""
    values, rest = _read_tags(text, arguments)
    if rest.strip():
        raise ValueError("text between or after the tags")
    return values


def _transform(value: Any, rule: WholeRule, captures: dict[str, str]) -> Any:
    return value if rule.transform is None else _build(rule.transform, {**captures, "content": value})


def _build(transform: Any, names: dict[str, Any]) -> Any:
    """Returns `transform` with names replaced by their values."""
    if isinstance(transform, dict):
        return {key: _build(value, names) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_build(value, names) for value in transform]
    match = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if match is None:
        return transform
    value: Any = names
    for key in match[1].split("."):
        value = value[key]
    return value
