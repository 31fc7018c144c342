"""Calls that can only be parsed as a whole, as described by transformers' response templates.

The rules are those of `transformers.utils.chat_parsing` (5.23): content parsers, then a transform that builds the call.
"""

# pyright: basic
# (values here are whatever JSON holds)

import json
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import regex

from frontend.parsing.argument_json import is_unicode, write_arguments
from frontend.parsing.call_scanner import CallScanner, NotACallError, Steps, TextEndError
from frontend.parsing.deltas import Deltas
from frontend.parsing.marks import MAX_SEARCH_S
from frontend.parsing.schema_casts import cast_arguments

PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")


class WholeRule(msgspec.Struct, frozen=True):
    """How the text between two marks is parsed into calls: the entries of a response template's field."""

    content: str = "text"
    content_args: dict[str, Any] = {}
    transform: Any = None
    transform_each: bool = False


class WholeCalls(CallScanner):
    """`captures`: the named groups of the opening mark. `tools`: the schema of each tool's parameters, by tool name."""

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
            self._deltas.num_broken += 1
            return text
        try:
            value = _transform(parse_content(text[self._num_opening :], self._rule), self._rule, self._captures)
            calls = [self._read_one(call) for call in (value if isinstance(value, list) else [value])]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, TimeoutError):
            return text
        if not calls:
            return text
        for name, arguments in calls:
            self._add_call(name, arguments)
        return ""

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
        case "kv-lines":
            return _parse_lines(text, arguments)
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "bool":
            return text.strip().lower() in ("true", "1")
        case _:
            return text.strip() if arguments.get("strip", True) else text


def _parse_json(text: str, arguments: dict[str, Any]) -> Any:
    """Parses JSON, optionally with `unquoted_keys` and strings between `string_delims`, as Gemma 4 writes it."""
    strings: list[str] = []

    def replace(match: Any) -> str:
        strings.append(match[1])
        return f"\x01{len(strings) - 1}\x02"

    plain = text
    for opening, closing in arguments.get("string_delims", ()):
        if "\x01" in text or "\x02" in text:
            raise ValueError("a character that stands for a string")
        plain = regex.sub(regex.escape(opening) + "(.*?)" + regex.escape(closing), replace, plain, flags=regex.DOTALL)
    if arguments.get("unquoted_keys"):
        plain = regex.sub(r"(?<=[{,])\s*([\w.-]+)\s*:", r'"\1":', plain)
    plain = regex.sub("\x01(\\d+)\x02", lambda match: json.dumps(strings[int(match[1])]), plain)
    try:
        return json.loads(plain)
    except ValueError:
        if arguments.get("allow_non_json"):
            return text.strip()
        raise


def _parse_tags(text: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Parses a sequence of `<key>value</key>` that match `tag_pattern`. Raises `ValueError` for text between them."""
    values: dict[str, Any] = {}
    end = 0
    for match in regex.finditer(arguments["tag_pattern"], text, flags=regex.DOTALL, timeout=MAX_SEARCH_S):
        key, value = match["key"], _parse_value(match.groupdict().get("value") or "", arguments)
        if text[end : match.start()].strip():
            raise ValueError("text between tags")
        end = match.end()
        if key in values and arguments.get("merge_duplicates"):
            values[key] = [*(values[key] if isinstance(values[key], list) else [values[key]]), value]
        else:
            values[key] = value
    if text[end:].strip():
        raise ValueError("text after the tags")
    return values


def _parse_lines(text: str, arguments: dict[str, Any]) -> dict[str, Any]:
    separator = arguments.get("kv_sep", ":")
    values: dict[str, Any] = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, found, value = line.partition(separator)
        if found:
            values[key.strip()] = _parse_value(value.strip(), arguments)
    return values


def _parse_value(text: str, arguments: dict[str, Any]) -> Any:
    parser = arguments.get("value_parser")
    return (
        text if parser is None else parse_content(text, WholeRule(parser.get("name", "text"), parser.get("args", {})))
    )


def _transform(value: Any, rule: WholeRule, captures: dict[str, str]) -> Any:
    if rule.transform is None:
        return value
    if rule.transform_each:
        return [_build(rule.transform, {**captures, **item}) for item in value]
    return _build(rule.transform, {**captures, "content": value})


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
