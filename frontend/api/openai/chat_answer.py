"""What a choice of a chat has said, in OpenAI's shapes: content, reasoning and calls of tools."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.answer_reader import AnswerRules
from frontend.parsing.deltas import CallArguments, CallBroken, CallStart, Content, Delta, Reasoning


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


def chat_delta(rules: AnswerRules, delta: Content | Reasoning | CallStart | CallArguments) -> ChatDelta:
    """Returns the delta as a chunk has it; a call gets its id here."""
    match delta:
        case Content(text):
            return ChatDelta(text)
        case Reasoning(text):
            return ChatDelta(reasoning=text, reasoning_content=text)
        case CallStart(index, name):
            function = FunctionDelta("", name)
            return ChatDelta(tool_calls=[ToolCallDelta(index, function, rules.new_call_id(), "function")])
        case CallArguments(index, text):
            return ChatDelta(tool_calls=[ToolCallDelta(index, FunctionDelta(text))])


def make_answer(rules: AnswerRules, role: str, begun: str, deltas: Iterable[Delta]) -> ChatAnswer:
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
                calls.append(ToolCall(rules.new_call_id(), CalledFunction(name, "")))
            case CallArguments(_, text):
                call = calls[-1]
                function = CalledFunction(call.function.name, call.function.arguments + text)
                calls[-1] = ToolCall(call.id, function)
            case CallBroken():
                pass
    has_reasoning = rules.format.has_reasoning and rules.shows_reasoning
    return ChatAnswer(
        role,
        content or (None if calls or reasoning else ""),
        reasoning=(reasoning or None) if has_reasoning else UNSET,
        reasoning_content=(reasoning or None) if has_reasoning else UNSET,
        tool_calls=calls or UNSET,
    )
