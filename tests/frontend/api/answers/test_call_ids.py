"""Ids of calls in the form that a model's chat template wants."""

import re
from typing import Any

from frontend.api.answers.call_ids import fit_ids, next_number
from frontend.api.answers.chat_messages import ChatMessage
from frontend.api.answers.conversation import adapt_messages
from frontend.api.answers.tools import NO_TOOLS
from frontend.parsing.model_format import choose_format


def call(call_id: str, name: str = "now") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}


CHAT = [
    ChatMessage(role="user", content="hi"),
    ChatMessage(role="assistant", content="", tool_calls=[call("toolu_1"), call("call_2", "get_weather")]),
    ChatMessage(role="tool", content="b", tool_call_id="call_2"),
    ChatMessage(role="tool", content="a", tool_call_id="toolu_1"),
]


def ids_of(messages: list[ChatMessage]) -> list[str]:
    made = [each["id"] for message in messages for each in message.tool_calls or ()]
    return made + [message.tool_call_id for message in messages if message.tool_call_id]


def test_ids_of_other_servers_become_numbered():
    first, second = "functions.now:0", "functions.get_weather:1"
    assert ids_of(fit_ids(CHAT, "numbered")) == [first, second, second, first]
    assert fit_ids(fit_ids(CHAT, "numbered"), "numbered") == fit_ids(CHAT, "numbered")
    assert next_number(CHAT) == 2
    assert next_number([ChatMessage(role="assistant", tool_calls=[call("functions.now:7")])]) == 8


def test_ids_of_other_servers_become_short():
    first, second, *results = ids_of(fit_ids(CHAT, "short"))
    assert results == [second, first]
    assert first != second
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in (first, second))
    short = [ChatMessage(role="assistant", tool_calls=[call("Ab3dEf7hI")])]
    assert fit_ids(short, "short") == short


def test_only_templates_that_want_it_get_other_ids():
    assert ids_of(adapt_messages(CHAT, NO_TOOLS, choose_format("kimi_k2", "none", "")))[0] == "functions.now:0"
    assert adapt_messages(CHAT, NO_TOOLS, choose_format("hermes", "none", "")) == CHAT
