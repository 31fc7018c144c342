"""Replies and chunks are valid against OpenAI's own schemas."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from messages.ring.replies import PromptReply
from messages.ring.requests import TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, final, position_logprobs, step

pytestmark = pytest.mark.shared

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
LOGPROBS = [{"logprobs": 2, "echo": True}, {"logprobs": True, "top_logprobs": 1}]

CHOICE = ("properties", "choices", "items", "properties")
COLUMNS = (*CHOICE, "logprobs", "anyOf", 0, "properties")
NULLABLE = [
    ("CreateCompletionResponse", ("properties", "usage")),
    ("CreateCompletionResponse", (*CHOICE, "finish_reason")),
    ("CreateCompletionResponse", (*COLUMNS, "token_logprobs", "items")),
    ("CreateCompletionResponse", (*COLUMNS, "top_logprobs", "items")),
    ("CreateChatCompletionStreamResponse", ("properties", "usage")),
    ("CreateChatCompletionStreamResponse", (*CHOICE, "finish_reason")),
    ("CreateChatCompletionStreamResponse", (*CHOICE, "logprobs", "properties", "refusal")),
    ("CreateChatCompletionStreamResponse", (*CHOICE, "logprobs")),
]
"""Fields that are null in OpenAI's replies, in chunks or for a prompt's first token, contrary to its schema."""

Check = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def check(shared_dir: Path) -> Check:
    """Returns a function that fails where a document does not follow the schema of that name."""
    components = json.loads((shared_dir / "openai" / "openai_subset.json").read_text())["components"]
    for name, path in NULLABLE:
        parent: Any = components["schemas"][name]
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = {"anyOf": [parent[path[-1]], {"type": "null"}]}

    def check(name: str, document: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": components}
        errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]
        assert not errors, document

    return check


def play(server: FrontendRun, message: TokenizeMsg) -> None:
    """Answers as the ring does: the prompt, a token and the end, with logprobs where they are wanted."""
    params = message.sampling_params
    if params.num_prompt_logprobs is not None:
        server.send(
            PromptReply(message.uid, 0, "hi", (position_logprobs(4, "h", None, 0), position_logprobs(5, "i", -1.0, 1)))
        )
    has_logprobs = params.num_logprobs is not None
    one, two = position_logprobs(1, "a", -1.0, 0, (1, "a", -1.0)), position_logprobs(2, "b", -2.0, 1, (3, "c", -0.5))
    server.send(step([(message, 1, "a")], logprobs={0: one} if has_logprobs else {}))
    server.send(final(message, "b", (2,), finish_reason="stop", logprobs=(two,) if has_logprobs else ()))


@pytest.mark.parametrize("extra", [{}, LOGPROBS[0], {"n": 2}, {"echo": True}, {"stop": "x"}])
def test_completions(server: FrontendRun, check: Check, extra: dict[str, Any]):
    for stream in ({}, USAGE):
        with server.call({**extra, **stream}, path=COMPLETIONS) as call:
            for _ in range(extra.get("n", 1)):
                play(server, server.take_request())
            for document in call.events() if stream else [call.json()]:
                check("CreateCompletionResponse", document)


@pytest.mark.parametrize("extra", [{}, LOGPROBS[1], {"n": 2}])
def test_chats(server: FrontendRun, check: Check, extra: dict[str, Any]):
    with server.call({"messages": MESSAGES, **extra}, path=CHAT) as call:
        for _ in range(extra.get("n", 1)):
            play(server, server.take_request())
        check("CreateChatCompletionResponse", call.json())
    with server.call({"messages": MESSAGES, **extra, **USAGE}, path=CHAT) as call:
        for _ in range(extra.get("n", 1)):
            play(server, server.take_request())
        for chunk in call.events():
            check("CreateChatCompletionStreamResponse", chunk)


def test_calls_of_tools(reader: FrontendRun, check: Check):
    text = '<think>Hm</think>One moment.<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'
    body = {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "now"}}]}
    with reader.call(body, path=CHAT) as call:
        reader.send(final(reader.take_request(), text, (1,), finish_reason="stop"))
        reply = call.json()
        check("CreateChatCompletionResponse", reply)
    check("ChatCompletionMessageToolCall", reply["choices"][0]["message"]["tool_calls"][0])
    with reader.call({**body, **USAGE}, path=CHAT) as call:
        message = reader.take_request()
        for piece in (text[:30], text[30:60], text[60:]):
            reader.send(step([(message, 1, piece)]))
        reader.send(final(message, "", (2,), finish_reason="stop"))
        for chunk in call.events():
            check("CreateChatCompletionStreamResponse", chunk)


def test_models_and_errors(server: FrontendRun, check: Check):
    check("ListModelsResponse", server.client.get("/v1/models").json())
    check("Model", server.client.get("/v1/models/m").json())
    check("ErrorResponse", server.client.get("/v1/models/x").json())
    check("ErrorResponse", server.client.post(COMPLETIONS, json={"prompt": ""}).json())
