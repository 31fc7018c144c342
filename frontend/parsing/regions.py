"""Formats of answers as data: the regions that marks delimit, read from transformers' response templates.

A response template (`transformers.utils.chat_parsing`, 5.23) names for each field of a message the marks around it and
how its text is read: as text, JSON or tags. We add `starts_content` (the region can only be the first thing in the
answer), `known_names_only` (only the name of a given tool makes it a call; `starts_content` implies it),
`keyed_by_name` (a call is `{name: arguments}`) and the content "pythonic".
"""

# pyright: basic
# (values here are whatever JSON holds)

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import regex

from frontend.parsing.call_scanner import CallScanner
from frontend.parsing.deltas import Deltas
from frontend.parsing.json_calls import JsonArguments, JsonCalls
from frontend.parsing.marks import Mark
from frontend.parsing.pythonic_calls import PythonicCalls
from frontend.parsing.whole_calls import VALUE, WholeCalls, WholeRule
from messages.errors import errors_as

Kind = Literal["content", "reasoning", "calls"]

KINDS: dict[str, Kind] = {
    "content": "content",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "thinking": "reasoning",
    "tool_calls": "calls",
}
"""The kind of each field of a message. The text of other fields is content."""

CONTENTS = {"text", "json", "xml-inline", "pythonic"}
CONTENT_ARGS = {"strip", "unquoted_keys", "string_delims", "tag_pattern"}
FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"),
    *("transform", "transform_each", "starts_content", "known_names_only", "keyed_by_name"),
}
TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
ARGUMENTS_KEYS = ("arguments", "parameters")
PATH = regex.compile(r"\{(?:content\.)?(\w+)\}")


class FormatError(ValueError):
    """A response template cannot be used; the message has the reason."""


class CallRule(NamedTuple):
    """How calls are parsed. `name_group`: the group of the opening mark that contains the name, "" for none.

    `has_mark`: a mark identifies a call; without a mark, a call must have the name of a tool.
    """

    style: Literal["json", "arguments", "pythonic", "whole"]
    has_mark: bool
    whole: WholeRule
    name_group: str = ""
    name_key: str | None = "name"
    arguments_keys: tuple[str, ...] = ARGUMENTS_KEYS

    def open(self, deltas: Deltas, opening: str, captures: dict[str, str], tools: Mapping[str, Any]) -> CallScanner:
        """Returns the scanner for the region that `opening` has begun."""
        known_names = None if self.has_mark and not deltas.is_draft else tools.keys()
        match self.style:
            case "json":
                return JsonCalls(deltas, opening, self.name_key, self.arguments_keys, known_names)
            case "arguments":
                return JsonArguments(deltas, opening, captures.get(self.name_group, ""), known_names)
            case "pythonic":
                return PythonicCalls(deltas, opening, known_names)
            case "whole":
                return WholeCalls(deltas, opening, self.whole, captures, tools, known_names)


class Region(NamedTuple):
    """Without `opening`, it is the text outside all other regions; without `closing`, it extends to the end.

    `is_stripped`: whitespace next to marks is dropped. `join` separates the texts of two such regions.
    """

    kind: Kind
    opening: Mark | None
    closing: Mark | None
    is_stripped: bool
    join: str
    starts_content: bool
    calls: CallRule | None


class Format(NamedTuple):
    """The format of a model's answers.

    `needs_special_tokens`: some marks are special tokens, so the text must show them.
    """

    regions: tuple[Region, ...]
    rest: Region | None
    """The text outside all other regions; if None, such text is dropped."""
    needs_special_tokens: bool = False

    @property
    def has_calls(self) -> bool:
        return any(region.kind == "calls" for region in self.regions)

    @property
    def has_reasoning(self) -> bool:
        return any(region.kind == "reasoning" for region in self.regions)


def read_template(template: Any) -> Format:
    """Returns the format that a response template describes. Raises `FormatError`."""
    if not isinstance(template, dict) or not isinstance(template.get("fields"), dict) or not template["fields"]:
        raise FormatError("it is not an object with fields")
    if template.get("version", 1) != 1:
        raise FormatError(f"its version is {template['version']!r}, only 1 is supported")
    _check_keys(template, TEMPLATE_KEYS, "it")
    regions = [read_region(name, field) for name, field in template["fields"].items() if name in KINDS]
    rests = [region for region in regions if region.opening is None]
    if len(rests) > 1:
        raise FormatError("more than one field has no opening mark")
    return Format(
        regions=tuple(region for region in regions if region.opening is not None),
        rest=rests[0] if rests else None,
        needs_special_tokens=True,
    )


def read_region(name: str, field: Any) -> Region:
    """Returns the region of the field `name` of a response template. Raises `FormatError`."""
    where = f"field {name}"
    if not isinstance(field, dict):
        raise FormatError(f"{where} is not an object")
    _check_keys(field, FIELD_KEYS, where)
    if field.get("content", "text") not in CONTENTS:
        raise FormatError(f"{where}: unknown content {field['content']!r}")
    _check_keys(field.get("content_args", {}), CONTENT_ARGS, f"{where}: content_args")
    opening = _read_mark(field, "open", where)
    if KINDS[name] == "calls" and opening is None:
        raise FormatError(f"{where} has no opening mark")
    is_stripped = bool(field.get("content_args", {}).get("strip", True))
    return Region(
        kind=KINDS[name],
        opening=opening,
        closing=_read_mark(field, "close", where),
        is_stripped=is_stripped,
        join=field.get("join") or ("\n" if is_stripped else ""),
        starts_content=bool(field.get("starts_content")),
        calls=_read_calls(field, opening) if KINDS[name] == "calls" and opening is not None else None,
    )


def _check_keys(provided: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(provided) - known)
    if unknown:
        raise FormatError(f"{where} has unknown keys: {', '.join(map(str, unknown))}")


def _read_mark(provided: dict[str, Any], key: str, where: str) -> Mark | None:
    texts, pattern = provided.get(key), provided.get(f"{key}_pattern")
    if texts is None and pattern is None:
        return None
    texts = [texts] if isinstance(texts, str) else texts or []
    if not all(isinstance(text, str) and text for text in texts) or not isinstance(pattern or "", str):
        raise FormatError(f"{where}: {key} must be texts that are not empty")
    if bool(texts) == bool(pattern):
        raise FormatError(f"{where}: give either {key} or {key}_pattern")
    with errors_as(FormatError, f"{where}: {key}_pattern is not a regular expression", of=regex.error):
        return Mark(texts, pattern or "")


def _read_calls(field: dict[str, Any], opening: Mark) -> CallRule:
    """Returns the rule for calls. They are parsed as they arrive if the transform only selects name and arguments."""
    keys = ("content", "content_args", "transform")
    tags = field.get("content_args", {}).get("tag_pattern")
    if isinstance(tags, str):  # indentation is part of a value, and so is all whitespace but one line end on each side
        tags = tags.replace(rf"\s*{VALUE}\s*", rf"\n?{VALUE}\n?")
        field = {**field, "content_args": {**field["content_args"], "tag_pattern": tags}}
    has_mark = not (field.get("starts_content") or field.get("known_names_only"))
    whole = CallRule("whole", has_mark, WholeRule(**{key: field[key] for key in keys if key in field}))
    if field.get("content") == "pythonic":
        return whole._replace(style="pythonic")
    if field.get("content") != "json" or field.get("content_args"):
        return whole
    if field.get("keyed_by_name"):
        return whole._replace(style="json", name_key=None)
    transform = field.get("transform")
    function = transform.get("function", transform) if isinstance(transform, dict) else transform
    if function in (None, "{content}"):
        return whole._replace(style="json")
    if not isinstance(function, dict):
        return whole
    name, arguments = (PATH.fullmatch(str(function.get(key))) for key in ("name", "arguments"))
    if name is None:
        return whole
    if name[1] in opening.group_names and function.get("arguments") == "{content}":
        return whole._replace(style="arguments", name_group=name[1])
    if arguments is None or name[1] in opening.group_names:
        return whole
    return whole._replace(style="json", name_key=name[1], arguments_keys=(arguments[1],))
