"""A value of the wrong kind in a message, an item or a block: the 400 names the place, the kind and the type."""

import json
from typing import Any

import pytest

from frontend.api.answers.chat_messages import make_chat_prompt
from frontend.api.anthropic.body import MessagesBody
from frontend.api.openai.chat import ChatBody
from frontend.api.responses.body import ResponseBody
from frontend.api.responses.items import read_items
from frontend.http.body import BodyDecoder
from frontend.http.places import MAX_READ_BYTES
from messages.errors import RequestError

USER = {"role": "user", "content": "hi"}
RESPONSES, CHATS, MESSAGES = BodyDecoder(ResponseBody), BodyDecoder(ChatBody), BodyDecoder(MessagesBody)


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, fields]}


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": content, **fields}]}


def read(decoder: BodyDecoder[Any], body: dict[str, Any]) -> Any:
    decoded = decoder.decode(json.dumps(body).encode())
    if decoder is RESPONSES:
        return read_items(decoded.input)
    options: Any = dict.fromkeys(("add_generation_prompt", "continue_final_message", "template_kwargs"))
    return make_chat_prompt(decoded.messages, **options)


def refusal_of(decoder: BodyDecoder[Any], body: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as raised:
        read(decoder, body)
    return str(raised.value)


@pytest.mark.parametrize(
    ("decoder", "body", "text"),
    [
        (
            RESPONSES,
            item(type="function_call", call_id="c", name="f", arguments={"a": 1}),
            "input[1].arguments must be a string, got {\"a\":1} (in an object of type 'function_call')",
        ),
        (
            RESPONSES,
            item(type="function_call_output", call_id="c", output={"a": 1}),
            "input[1].output must be a string or a list, got {\"a\":1} (in an object of type 'function_call_output')",
        ),
        (
            RESPONSES,
            item(type="reasoning", summary=["x"]),
            "input[1].summary[0] must be an object, got \"x\" (in an object of type 'reasoning')",
        ),
        (
            RESPONSES,
            item(role="user", content=[{"text": "x"}]),
            "input[1].content[0]: Object missing required field `type` (in a message of the role 'user')",
        ),
        (RESPONSES, item(type="input_text", text="x"), "input[1]: input_text is a part of a message"),
        (RESPONSES, item(role="user", content=[{"type": "refusal"}]), "input[1].content[0].refusal is required"),
        (RESPONSES, item(role="tool", content="x"), "an item of type function_call_output"),
        (
            CHATS,
            message("user", [{"type": "text", "text": {"a": 1}}]),
            "messages[1].content[0].text must be a string, got {\"a\":1} (in an object of type 'text')",
        ),
        (
            CHATS,
            message("tool", {"a": 1}, tool_call_id="c"),
            "messages[1].content must be a string or a list, got {\"a\":1} (in a message of the role 'tool')",
        ),
        (CHATS, message("user", [{"type": "refusal"}]), "messages[1].content[0].refusal must be a string"),
        (
            MESSAGES,
            message("assistant", [{"type": "tool_use", "id": "c", "name": "f", "input": "{}"}]),
            "messages[1].content[0].input must be an object, got \"{}\" (in an object of type 'tool_use')",
        ),
        (
            MESSAGES,
            message("user", [{"type": "tool_result", "tool_use_id": "c", "content": 5}]),
            "messages[1].content[0].content must be a string or a list, got 5 (in an object of type 'tool_result')",
        ),
    ],
)
def test_what_is_wrong_is_named(decoder: BodyDecoder[Any], body: dict[str, Any], text: str):
    body = {"max_tokens": 9, **body} if decoder is MESSAGES else body
    assert text in refusal_of(decoder, body)


def test_of_a_large_field_only_the_place_is_named():
    body = {"messages": [{"role": "user", "content": "x" * MAX_READ_BYTES}, {"role": "user", "content": 5}]}
    assert refusal_of(CHATS, body).endswith("… (at messages[1].content)")


def test_numbers_that_are_too_large_and_deep_nesting_next_to_the_place_do_no_harm():
    for other in (b"1e999", b"[" * 600 + b"]" * 600):
        with pytest.raises(RequestError, match=r"messages\[0\].content"):
            CHATS.decode(b'{"messages": [{"role": "user", "content": 5, "x": %b}]}' % other)


def test_text_parts_of_the_other_api_are_text():
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}, {"type": "text", "text": "c"}]
    prompt = read(CHATS, {"messages": [{"role": "user", "content": parts}]})
    (shown,) = json.loads(prompt.messages)
    assert shown["content"] == [{"type": "text", "text": text} for text in "abc"]
