"""Responses and their events match the types of OpenAI's own client: every required field is present."""

import json
from typing import Any

import pytest

from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import EncodeReply
from messages.ring.requests import EncodeMsg
from tests.frontend.api.responses.test_responses import PATH, TEXT, TOOL, play, send
from tests.frontend.api.sse_events import named_events, next_event
from tests.frontend.frontend_run import FrontendRun, final, position_logprobs, step

pydantic: Any = pytest.importorskip("pydantic")
types: Any = pytest.importorskip("openai.types.responses")

CUSTOM = {"type": "custom", "name": "shell"}
CUSTOM_CALL = '<tool_call>{"name": "shell", "arguments": {"input": "ls -l"}}</tool_call>'


def check(name: str, document: Any) -> None:
    """Fails where a required field is missing or has another type."""
    pydantic.TypeAdapter(getattr(types, name)).validate_python(document)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (TEXT, {"tools": [TOOL], "max_tool_calls": 3, "include": ["reasoning.encrypted_content"]}),
        (CUSTOM_CALL, {"tools": [CUSTOM], "stream": True}),
        (TEXT, {"tools": [TOOL], "stream": True, "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}}),
    ],
)
def test_a_response_and_its_events(reader: FrontendRun, text: str, body: dict[str, Any]):
    call, message = send(reader, **body)
    with call:
        play(reader, message, text)
        events = named_events(call) if body.get("stream") else []
        response = events[-1]["response"] if events else call.json()
    for event in events:
        check("ResponseStreamEvent", event)
    check("Response", response)
    check("Response", reader.client.get(f"{PATH}/{response['id']}").json())


def test_logprobs(reader: FrontendRun):
    call, message = send(reader, stream=True, include=["message.output_text.logprobs"], top_logprobs=1)
    with call:
        one = position_logprobs(1, "a", -1.0, 0, (1, "a", -1.0))
        reader.send(step([(message, 1, "a")], logprobs={0: one}))
        reader.send(final(message, "b", (2,), logprobs=(position_logprobs(2, "b", -2.0, 1, (3, "c", -0.5)),)))
        events = named_events(call)
    for event in events:
        check("ResponseStreamEvent", event)
    assert [len(event["logprobs"]) for event in events if event["type"].endswith("text.delta")] == [1, 1]


def test_a_failed_response(reader: FrontendRun):
    call, message = send(reader, stream=True)
    with call:
        reader.send(step([(message, 5, "Yes")]))
        check("ResponseStreamEvent", next_event(call))
        reader.send(final(message, finish_reason="error", error=ErrorInfo(500, "out of luck")))
        *events, last = named_events(call)
    for event in [*events, last]:
        check("ResponseStreamEvent", event)
    assert last["type"] == "response.failed"


def test_the_items_of_an_input(reader: FrontendRun):
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "x"},
    ]
    call, message = send(reader, input=items)
    with call:
        play(reader, message, "Yes.")
        response = call.json()
    listed = reader.client.get(f"{PATH}/{response['id']}/input_items?order=asc").json()
    check("ResponseItemList", listed)
    assert [item["content"][0].get("annotations") for item in listed["data"][:3]] == [None, [], []]
    check("Response", reader.client.get(f"{PATH}/{response['id']}").json())


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
def test_the_tokens_of_an_input_are_counted_as_the_same_request_has_them(reader: FrontendRun, path: str):
    body: dict[str, Any] = (
        {"input": "hi", "instructions": "Be brief.", "tools": [TOOL], "reasoning": {"effort": "low"}}
        if path == PATH
        else {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"}
    )
    with reader.call({"prompt": None, **body}, path=path) as call:
        message = reader.take_request()
        reader.send(final(message, finish_reason="stop"))
        call.json()
    asked = reader.ask(f"{path}/input_tokens", body)
    question = reader.take(EncodeMsg)
    assert (question.chat, question.add_special_tokens) == (message.chat, message.add_special_tokens)
    reader.send(EncodeReply(question.uid, pack_int32(range(12))))
    reply = asked.response().json()
    assert reply == {"object": "response.input_tokens", "input_tokens": 12}
    pydantic.TypeAdapter(types.input_token_count_response.InputTokenCountResponse).validate_python(reply)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_beyond_max_tool_calls_are_left_out(reader: FrontendRun, stream: bool):
    call, message = send(reader, tools=[TOOL], max_tool_calls=2, stream=stream)
    with call:
        one = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
        play(reader, message, 3 * one)
        response = named_events(call)[-1]["response"] if stream else call.json()
    assert (response["max_tool_calls"], [item["type"] for item in response["output"]]) == (2, ["function_call"] * 2)
    refused = reader.client.post(PATH, json={"input": "hi", "max_tool_calls": 0})
    assert refused.json()["error"]["param"] == "max_tool_calls"
    assert json.loads(refused.text)["error"]["message"].startswith("max_tool_calls must be")
