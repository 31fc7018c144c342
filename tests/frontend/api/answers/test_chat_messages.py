import json
from typing import Any

import msgspec
import pytest

from frontend.api.answers.chat_messages import ChatMessage, make_chat_prompt
from messages.errors import RequestError


def rendered(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what the tokenizer gets for the messages of a client."""
    chat = make_chat_prompt(
        msgspec.convert(list(messages), list[ChatMessage]),
        add_generation_prompt=None,
        continue_final_message=None,
        template_kwargs=None,
    )
    return json.loads(chat.messages)


def test_plain_messages_pass_unchanged():
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hällo", "name": "Ann"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "thinking": "hm"},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
    ]
    assert rendered(*messages) == messages


def test_text_parts_pass_and_what_is_unknown_is_dropped():
    part = {"type": "text", "text": "a"}
    message = {"role": "user", "content": [part | {"cache_control": {}}, part], "zzz": 1}
    assert rendered(message) == [{"role": "user", "content": [part, part]}]


def test_a_developer_is_the_system_and_a_refusal_is_text():
    refusal = {"type": "refusal", "refusal": "no"}
    assert rendered({"role": "developer", "content": "x"}, {"role": "assistant", "content": [refusal]}) == [
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
    ]


def test_arguments_of_earlier_calls_are_objects():
    def call(arguments: Any) -> dict[str, Any]:
        return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}

    calls = [call('{"a": 1}'), call("not JSON"), call(""), call(None), call({"b": 2})]
    (message,) = rendered({"role": "assistant", "content": None, "tool_calls": calls})
    assert message["tool_calls"] == [call({"a": 1}), call("not JSON"), call({}), call({}), call({"b": 2})]
    assert message["content"] == ""


def test_any_role_passes_for_the_template_decides():
    messages = [
        {"role": "function", "content": "5", "name": "add"},
        {"role": "critic", "content": "Why?"},
        {"role": "r" * 64, "content": "x"},
    ]
    assert rendered(*messages) == messages
    assert rendered({"role": "function", "content": None, "name": "f"})[0]["content"] == ""


def test_reasoning_is_provided_to_templates_under_the_names_that_they_know():
    (message,) = rendered({"role": "assistant", "content": "So.", "reasoning": "hm"})
    assert message == {"role": "assistant", "content": "So.", "reasoning_content": "hm"}
    (message,) = rendered({"role": "assistant", "reasoning": "hm"})
    assert message == {"role": "assistant", "content": "", "reasoning_content": "hm", "thinking": "hm"}


@pytest.mark.parametrize(
    ("message", "fragment"),
    [
        ({"role": "tool", "content": "5"}, "messages[0].tool_call_id is required"),
        ({"role": "tool", "content": "5", "tool_call_id": ""}, "messages[0].tool_call_id is required"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function must be an object"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}, "function.name must be a string"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "arguments must be JSON",
        ),
        ({"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}, "messages[0].tool_calls[0].id"),
    ],
)
def test_what_is_wrong_with_a_call_is_named(message: dict[str, Any], fragment: str):
    with pytest.raises(RequestError) as raised:
        rendered(message)
    assert fragment in raised.value.info.message
