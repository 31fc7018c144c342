"""Tools for models whose chat template has no place for them: texts in messages that every template shows.

The system message lists the tools, and a call is a line of JSON. The results of calls become a message of the user.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.api.answers.chat_messages import ChatMessage, ContentPart, join_contents
from frontend.api.answers.turns import BETWEEN_TEXTS
from frontend.parsing.generic_format import ANSWER_GRAMMAR
from messages.ring.requests import CallGrammar, Grammar

INSTRUCTIONS = """\
You have these tools:
{tools}

To call a tool, answer with nothing but a line of JSON: {{"name": <the tool's name>, "arguments": <an object>}}. \
Several calls are one a line. The next message has the results. If no tool helps, answer in words."""

NUDGE = "What is your answer now?"
"""Ends the results: without it, small models repeat the call."""


def offer_calls(calls: CallGrammar) -> Grammar:
    """Returns the grammar of an answer that is a text or matches `calls`."""
    return Grammar("lark", ANSWER_GRAMMAR, "tools", calls=calls)


def write_tools(messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """Returns the chat with tools, calls and results as text.

    Consecutive results are one message, with the user's next one: many templates want roles to alternate.
    """
    names: dict[str, str] = {}
    written: list[ChatMessage] = []
    results: list[str | list[ContentPart] | None] = []
    for message in messages:
        if message.role == "tool":
            name = message.name or names.get(message.tool_call_id or "", "")
            results.append(join_contents([f"The tool {name} answered:", message.content], "\n"))
            continue
        if results and message.role == "user":
            message = msgspec.structs.replace(
                message, content=join_contents([*results, message.content], BETWEEN_TEXTS)
            )
        elif results:
            written.append(_results(results))
        results.clear()
        if message.tool_calls:
            names |= {str(call.get("id")): call["function"]["name"] for call in message.tool_calls}
            message = _with_calls_as_text(message)
        written.append(message)
    if results:
        written.append(_results(results))
    return _with_tools(written, tools) if tools else written


def _results(results: Sequence[str | list[ContentPart] | None]) -> ChatMessage:
    return ChatMessage(role="user", content=join_contents([*results, NUDGE], BETWEEN_TEXTS))


def _with_calls_as_text(message: ChatMessage) -> ChatMessage:
    lines: list[str | list[ContentPart] | None] = [message.content] if message.content else []
    for call in message.tool_calls or ():
        function = call["function"]
        line = {"name": function["name"], "arguments": function.get("arguments", {})}
        lines.append(json.dumps(line, ensure_ascii=False))
    return msgspec.structs.replace(message, content=join_contents(lines, "\n"), tool_calls=None)


def _with_tools(messages: list[ChatMessage], tools: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = INSTRUCTIONS.format(tools=listed)
    if messages and messages[0].role == "system":
        content = join_contents([messages[0].content, text], BETWEEN_TEXTS)
        return [msgspec.structs.replace(messages[0], content=content), *messages[1:]]
    return [ChatMessage(role="system", content=text), *messages]
