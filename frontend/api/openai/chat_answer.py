"""The answer of a chat in OpenAI's format: content, reasoning and tool calls."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.answer_blocks import AnswerBlocks, BlockEvent, BlockText, NewBlock


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
    """The first delta of a call has its id, type and name; later ones extend its arguments."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """The content of a chunk: the role in the first chunk of a choice, then text, reasoning (two names) or a call."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct, frozen=True):
    """`reasoning` and `reasoning_content` are equal. They are present if the model's format has reasoning."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


def chat_delta(event: BlockEvent) -> ChatDelta | None:
    """Returns the delta for an event, `None` if it adds nothing to the stream."""
    block = event.block
    match event:
        case NewBlock() if block.kind == "call":
            function = FunctionDelta("", block.name)
            return ChatDelta(tool_calls=[ToolCallDelta(block.call_index, function, block.call_id, "function")])
        case BlockText(_, text):
            match block.kind:
                case "text":
                    return ChatDelta(text)
                case "reasoning":
                    return ChatDelta(reasoning=text, reasoning_content=text)
                case "call":
                    return ChatDelta(tool_calls=[ToolCallDelta(block.call_index, FunctionDelta(text))])
        case _:
            return None


def make_answer(answer: AnswerBlocks, role: str, begun: str) -> ChatAnswer:
    """Returns the message that consists of all blocks; `begun` precedes its content."""
    rules, blocks = answer.rules, answer.blocks
    content = begun + "".join(block.text for block in blocks if block.kind == "text")
    reasoning = "".join(block.text for block in blocks if block.kind == "reasoning")
    calls = [ToolCall(each.call_id, CalledFunction(each.name, each.text)) for each in blocks if each.kind == "call"]
    has_reasoning = rules is not None and rules.format.has_reasoning and rules.shows_reasoning
    return ChatAnswer(
        role,
        content or (None if calls or reasoning else ""),
        reasoning=(reasoning or None) if has_reasoning else UNSET,
        reasoning_content=(reasoning or None) if has_reasoning else UNSET,
        tool_calls=calls or UNSET,
    )
