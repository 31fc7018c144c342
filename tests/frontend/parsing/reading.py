"""The parser's deltas for a text, added up as clients do."""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from frontend.parsing.deltas import CallArguments, CallBroken, CallStart, Content, Delta, Deltas, Reasoning
from frontend.parsing.formats import REASONING_FORMATS
from frontend.parsing.parser import ResponseParser
from frontend.parsing.regions import Format
from tokenizer_proc.thoughts import place_of


class Reading(NamedTuple):
    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    broken: list[int]
    """The incomplete ones of `calls`."""

    @property
    def values(self) -> tuple[tuple[str, Any], ...]:
        return tuple((name, json.loads(arguments)) for name, arguments in self.calls)


def add_up(deltas: Iterable[Delta]) -> Reading:
    deltas = list(deltas)
    msgspec.json.encode(deltas)  # half of a character cannot be sent
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    broken: list[int] = []
    for delta in deltas:
        match delta:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(index, name):
                assert index == len(calls), "calls come one after another"
                calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                assert text
                calls[index] = (calls[index][0], calls[index][1] + text)
            case CallBroken(index):
                assert index == len(calls) - 1
                broken.append(index)
    return Reading(content, reasoning, calls, broken)


def read(
    format: Format,
    text: str,
    tools: Mapping[str, Any],
    prompt_end: str = "",
    cuts: Iterable[int] = (),
    *,
    is_streamed: bool = True,
    is_cut: bool = False,
) -> Reading:
    """Reads `text`, cut at `cuts`."""
    thoughts = [entry.thought for entry in REASONING_FORMATS.values() if entry.thought and format.has_reasoning]
    begun = next((each.begin for each in thoughts if place_of(prompt_end, each) == "inside"), "")
    parser = ResponseParser(format, tools, begun, deltas=Deltas(is_streamed=is_streamed))
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    deltas = [delta for start, end in itertools.pairwise(places) for delta in parser.feed(text[start:end])]
    return add_up([*deltas, *parser.finish(is_cut=is_cut)])
