"""What a choice of a chat has said so far, in OpenAI's shapes: content, reasoning and calls of tools."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from frontend.parsing.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from frontend.parsing.parser import ResponseParser
from frontend.parsing.regions import Format
from frontend.requests.generation import Generation


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The first one of a call has its id, type and name, the others more of its arguments."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds: the role in the first one of a choice, then text, reasoning (under two names) or a call."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct, frozen=True):
    """`reasoning` and `reasoning_content` are the same; they are there where the model's format has reasoning."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class AnswerRules(NamedTuple):
    """How the choices of a chat are read. `schemas`: of the tools' parameters, by name. `begun`: what they continue."""

    format: Format
    schemas: dict[str, Any]
    new_call_id: Callable[[], str]
    allows_parallel_calls: bool = True
    shows_reasoning: bool = True
    begun: str = ""


class AnswerReader:
    """Reads one choice. Its parser begins with the first text: by then the end of the prompt is known."""

    def __init__(self, rules: AnswerRules, generation: Generation):
        self._rules = rules
        self._generation = generation
        self._parser: ResponseParser | None = None

    @property
    def has_calls(self) -> bool:
        return self._parser is not None and self._parser.num_calls > 0

    def feed(self, text: str) -> list[Delta]:
        """Returns what is certain with `text` and is to be shown."""
        return self._shown(self._open().feed(text)) if text else []

    def finish(self) -> list[Delta]:
        """Returns the rest."""
        return self._shown(self._open().finish())

    def _open(self) -> ResponseParser:
        if self._parser is None:
            prompt = self._generation.prompt
            rules = self._rules
            prompt_end = "" if prompt is None else prompt.text
            self._parser = ResponseParser(rules.format, rules.schemas, prompt_end, rules.begun)
        return self._parser

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        return [delta for delta in deltas if self._is_shown(delta)]

    def _is_shown(self, delta: Delta) -> bool:
        match delta:
            case Reasoning():
                return self._rules.shows_reasoning
            case CallStart() | CallArguments():
                return self._rules.allows_parallel_calls or delta.call_index == 0
            case Content():
                return True

    def chat_delta(self, delta: Delta) -> ChatDelta:
        """Returns the delta as a chunk has it; a call gets its id here."""
        match delta:
            case Content(text):
                return ChatDelta(text)
            case Reasoning(text):
                return ChatDelta(reasoning=text, reasoning_content=text)
            case CallStart(index, name):
                function = FunctionDelta("", name)
                return ChatDelta(tool_calls=[ToolCallDelta(index, function, self._rules.new_call_id(), "function")])
            case CallArguments(index, text):
                return ChatDelta(tool_calls=[ToolCallDelta(index, FunctionDelta(text))])

    def answer(self, role: str, begun: str, deltas: Iterable[Delta]) -> ChatAnswer:
        """Returns the message that all deltas together are; `begun` comes before its content."""
        content, reasoning = begun, ""
        calls: list[ToolCall] = []
        for delta in deltas:
            match delta:
                case Content(text):
                    content += text
                case Reasoning(text):
                    reasoning += text
                case CallStart(_, name):
                    calls.append(ToolCall(self._rules.new_call_id(), CalledFunction(name, "")))
                case CallArguments(_, text):
                    call = calls[-1]
                    function = CalledFunction(call.function.name, call.function.arguments + text)
                    calls[-1] = ToolCall(call.id, function)
        has_reasoning = self._rules.format.has_reasoning and self._rules.shows_reasoning
        return ChatAnswer(
            role,
            content or (None if calls or reasoning else ""),
            reasoning=(reasoning or None) if has_reasoning else UNSET,
            reasoning_content=(reasoning or None) if has_reasoning else UNSET,
            tool_calls=calls or UNSET,
        )
