"""`POST /v1/chat/completions` over real HTTP, with a ring played by the test."""

import json
from typing import Any

import pytest

from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import PrefilledRow, PromptReply, Usage
from messages.ring.requests import ChatPrompt, TokenizeMsg, Truncation
from tests.frontend.frontend_run import Call, FrontendRun, final, position_logprobs, step

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
HALF = {"role": "assistant", "content": "Once upon"}


def send(server: FrontendRun, num: int = 1, /, **body: Any) -> tuple[Call, list[TokenizeMsg]]:
    """Sends a chat and returns it with the `num` messages that the tokenizer gets for it."""
    call = server.call({"messages": [USER], **body}, path=PATH)
    return call, [server.take_request() for _ in range(num)]


def chat_of(message: TokenizeMsg) -> ChatPrompt:
    assert message.chat is not None
    return message.chat


def test_one_document(server: FrontendRun):
    call = server.call({"messages": [USER], "model": "m"}, {"X-Request-Id": "mine"}, PATH)
    with call:
        message = server.take_request()
        chat = chat_of(message)
        assert (message.prompt_text, message.prompt_ids, message.add_special_tokens) == (None, b"", False)
        assert json.loads(chat.messages) == [USER]
        assert (chat.add_generation_prompt, chat.continue_final_message, chat.template_kwargs) == (True, False, b"{}")
        assert message.sampling_params.max_tokens == 512
        server.send(step([(message, 1, "a")]))
        server.send(final(message, "b", (2,), stop_reason=2, finish_reason="stop"))
        reply = call.json()
    assert reply.pop("created") > 1.7e9
    answer = {"role": "assistant", "content": "ab", "refusal": None}
    assert reply == {
        "id": "chatcmpl-mine",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": answer, "logprobs": None, "finish_reason": "stop", "stop_reason": 2}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "service_tier": None,
    }


def test_a_stream_begins_with_the_role_of_each_choice(server: FrontendRun):
    call, (first, second) = send(server, 2, n=2, stream=True, stream_options={"include_usage": True})
    with call:
        server.send(step([(second, 1, "x")]))
        begun = [json.loads(call.next_event()[6:]) for _ in range(2)]
        server.send(step([(first, 1, "a"), (second, 2, "y")]))
        server.send(final(second, "", (3,), finish_reason="stop", usage=Usage(3, 0, 3)))
        server.send(final(first, "b", (2,)))
        *chunks, last = begun + call.events()
    assert begun[0]["choices"] == [
        {"index": 1, "delta": {"content": "", "role": "assistant"}, "logprobs": None, "finish_reason": None}
    ]
    assert begun[1]["choices"][0]["delta"] == {"content": "x"}
    assert {(chunk["object"], chunk["usage"]) for chunk in chunks} == {("chat.completion.chunk", None)}
    for index, text in enumerate(["ab", "xy"]):
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in mine] == ["assistant", *[None] * (len(mine) - 1)]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == text
        assert [choice["finish_reason"] is not None for choice in mine] == [False] * (len(mine) - 1) + [True]
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 8)


@pytest.mark.parametrize("is_over_at_once", [False, True])
def test_the_usage_of_a_chunk_is_that_of_what_has_been_sent(server: FrontendRun, is_over_at_once: bool):
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}
    call, (message,) = send(server, messages=[USER, HALF], continue_final_message=True, echo=True, **options)
    with call:
        prefilled = (PrefilledRow(message.uid, 0, Usage(20, 16)),)
        chunks: list[dict[str, Any]] = []
        if not is_over_at_once:
            server.send(step([(message, 1, "a")], prefilled=prefilled))
            chunks += [json.loads(call.next_event()[6:]) for _ in range(3)]
        server.send(final(message, "b", (2,), usage=Usage(20, 16, 1 if is_over_at_once else 2)))
        chunks += call.events()
    usages = [chunk["usage"] for chunk in chunks]
    expected = [0, 0, 1, 1] if is_over_at_once else [0, 0, 1, 2, 2]
    assert [usage["completion_tokens"] for usage in usages] == expected
    assert {usage["prompt_tokens"] for usage in usages} == {20}
    assert [usage["total_tokens"] for usage in usages] == [20 + num for num in expected]
    assert {usage["prompt_tokens_details"]["cached_tokens"] for usage in usages} == {16}


def test_max_completion_tokens_wins(server: FrontendRun):
    call, (message,) = send(server, max_tokens=5, max_completion_tokens=7, min_tokens=6)
    with call:
        assert message.sampling_params.max_tokens == 7
        server.send(final(message))
        call.json()


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(server: FrontendRun, stream: bool):
    call, (message,) = send(server, logprobs=True, top_logprobs=2, stream=stream)
    with call:
        assert message.sampling_params.num_logprobs == 2
        entry = position_logprobs(11, "ü", -0.5, 0, (12, "b", -0.25), (11, "ü", -0.5))
        server.send(final(message, "ü", (11,), logprobs=(entry,)))
        choice = call.events()[-1]["choices"][0] if stream else call.json()["choices"][0]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "ü",
                "bytes": [195, 188],
                "logprob": -0.5,
                "top_logprobs": [
                    {"token": "b", "bytes": [98], "logprob": -0.25},
                    {"token": "ü", "bytes": [195, 188], "logprob": -0.5},
                ],
            }
        ],
        "refusal": None,
    }


def test_logprobs_of_the_chosen_alone(server: FrontendRun):
    call, (message,) = send(server, logprobs=True)
    with call:
        assert message.sampling_params.num_logprobs == 0
        server.send(final(message, "a", (1,), logprobs=(position_logprobs(1, "a", -1.0, 0),)))
        assert call.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_message_may_be_continued_and_echoed(server: FrontendRun):
    call, (message,) = send(server, messages=[USER, HALF], continue_final_message=True, echo=True)
    with call:
        chat = chat_of(message)
        assert (chat.add_generation_prompt, chat.continue_final_message) == (False, True)
        server.send(final(message, " a time", (1,)))
        assert call.json()["choices"][0]["message"]["content"] == "Once upon a time"
    options = {"continue_final_message": True, "add_generation_prompt": False, "echo": True, "stream": True}
    call, (message,) = send(server, messages=[USER, HALF], **options)
    with call:
        server.send(final(message, " a time", (1,)))
        deltas = [chunk["choices"][0]["delta"] for chunk in call.events()]
    assert deltas == [{"content": "", "role": "assistant"}, {"content": "Once upon"}, {"content": " a time"}]


def test_template_variables_and_ids(server: FrontendRun):
    kwargs = {"enable_thinking": False}
    call, (message,) = send(server, chat_template_kwargs=kwargs, return_token_ids=True, prompt_logprobs=0)
    with call:
        assert json.loads(chat_of(message).template_kwargs) == kwargs
        assert (message.sampling_params.echo, message.sampling_params.num_prompt_logprobs) == (True, 0)
        tokens = (position_logprobs(4, "h", None, 0), position_logprobs(5, "i", -1.0, 1))
        server.send(PromptReply(message.uid, 0, "hi", tokens, pack_int32([4, 5])))
        server.send(final(message, "a", (6,)))
        reply = call.json()
    assert (reply["prompt_token_ids"], reply["choices"][0]["token_ids"]) == ([4, 5], [6])
    assert reply["prompt_logprobs"] == [None, {"5": {"logprob": -1.0, "rank": None, "decoded_token": "i"}}]


@pytest.mark.parametrize("status", [400, 500])
def test_a_refusal_by_the_template_is_a_plain_error(server: FrontendRun, status: int):
    call, (message,) = send(server, stream=True)
    with call:
        error = ErrorInfo(status, "Conversation roles must alternate", param="messages")
        server.send(final(message, finish_reason="error", error=error))
        assert call.response.status == status
        assert call.json()["error"]["message"] == error.message


def test_tools_that_shall_not_be_used_are_taken(server: FrontendRun):
    tools = [{"type": "function", "function": {"name": "f"}}]
    call, (message,) = send(server, tools=tools, tool_choice="none", functions=[], reasoning_effort="low")
    with call:
        server.send(final(message, "a", (1,)))
        assert call.response.status == 200


@pytest.mark.parametrize(
    ("body", "param", "fragment"),
    [
        ({"messages": []}, "messages", "not empty"),
        ({"messages": None}, "messages", "got null"),
        ({"messages": "hi"}, "messages", "a list of messages"),
        ({"messages": [{"content": "hi"}]}, "messages", "(at messages[0])"),
        ({"messages": [{"role": 5, "content": "hi"}]}, "messages", "(at messages[0].role)"),
        ({"messages": [{"role": "", "content": "hi"}]}, "messages", "(at messages[0].role)"),
        ({"messages": [{"role": "r" * 65, "content": "hi"}]}, "messages", "1 to 64 characters"),
        ({"messages": [USER, {"role": "user"}]}, "messages", "messages[1].content is required"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages",
            "messages[0].content must be a string or a list",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
            "messages[0].content[0]: image input is not supported by this model",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "content[0].text must be"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "cannot both"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs to be true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": 2}, "logprobs", "true or false, got 2"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "from 1 to 2147483647, got 0"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens", "to 2147483647, got 2147483648"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to 2147483647, got 0"),
        ({"n": 2, "temperature": 0}, "n", "greedy"),
        ({"n": 65}, "n", "at most 64, got 65"),
        ({"service_tier": {}}, "service_tier", "a string"),
        ({"metadata": {"a": 1}}, "metadata", "an object of strings"),
        ({"tools": [{"type": "function"}]}, "tools", "missing required field `function` (at tools[0])"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "--tool-call-parser"),
        ({"functions": [{}]}, "functions", "functions must be a list of functions, each with a name"),
        ({"functions": [{"name": "f"}], "function_call": "f"}, "function_call", 'must be "none", "auto" or {"name"'),
        ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice", "cannot be combined with functions"),
        ({"functions": [{"name": "f"}]}, "tools", "does not support tools"),
        ({"function_call": {"name": "f"}}, "function_call", "there are no functions"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages", "function.name must be a string"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"response_format": {"type": "xml"}}, "response_format", '"json_object"'),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"audio": {"voice": "x"}}, "audio", "not supported"),
        ({"chat_template": "{{ x }}"}, "chat_template", "not supported"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "an object"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"stream_options": {}}, "stream_options", "only for streams"),
        ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs", "not in streams"),
        ({"mesages": []}, "mesages", "did you mean messages?"),
    ],
)
def test_what_is_refused(server: FrontendRun, body: dict[str, Any], param: str, fragment: str):
    response = server.client.post(PATH, json={"messages": [USER], **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert fragment in error["message"]


def test_no_messages_and_no_model(server: FrontendRun):
    missing = server.client.post(PATH, json={"model": "m"})
    assert (missing.status_code, missing.json()["error"]["message"]) == (400, "messages is required")
    unknown = server.client.post(PATH, json={"model": "gpt-5", "messages": [USER]})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_a_conversation_may_be_cut(server: FrontendRun):
    call, (message,) = send(server, truncate_prompt_tokens=-1)
    with call:
        assert message.truncation == Truncation(-1, "left")
        server.send(final(message))
        call.json()


def test_any_role_goes_to_the_template(server: FrontendRun):
    messages = [{"role": "critic", "content": "Why?"}, {"role": "function", "content": None, "name": "f"}]
    call, (message,) = send(server, messages=messages)
    with call:
        assert [entry["role"] for entry in json.loads(chat_of(message).messages)] == ["critic", "function"]
        server.send(final(message))
        call.json()


FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALLING = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
CALLED = {"name": "get_weather", "arguments": '{"city": "Rom"}'}


def test_functions_are_tools_of_the_old_form(reader: FrontendRun):
    turns = [
        USER,
        {"role": "assistant", "content": None, "function_call": CALLED},
        {"role": "function", "name": "get_weather", "content": "rain"},
    ]
    body = {"messages": turns, "functions": [FUNCTION]}
    call, (message,) = send(reader, **body)
    with call:
        chat = chat_of(message)
        assert json.loads(chat.template_kwargs)["tools"] == [{"type": "function", "function": FUNCTION}]
        _, calling, result = json.loads(chat.messages)
        (made,) = calling["tool_calls"]
        assert (made["function"]["name"], made["function"]["arguments"]) == ("get_weather", {"city": "Rom"})
        assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", made["id"], "rain")
        reader.send(PromptReply(message.uid, 0, ""))
        reader.send(final(message, CALLING + CALLING, (1,), finish_reason="stop"))
        (choice,) = call.json()["choices"]
    assert choice["message"]["function_call"] == CALLED
    assert "tool_calls" not in choice["message"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("function_call", None)
    call, (message,) = send(reader, **body, stream=True)
    with call:
        reader.send(PromptReply(message.uid, 0, ""))
        for start in range(0, len(CALLING), 9):
            reader.send(step([(message, 5, CALLING[start : start + 9])]))
        reader.send(final(message, "", (1,), finish_reason="stop"))
        choices = [event["choices"][0] for event in call.events()]
    deltas = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
    assert deltas[0]["name"] == "get_weather"
    assert "".join(delta["arguments"] for delta in deltas) == CALLED["arguments"]
    assert not any("tool_calls" in choice["delta"] for choice in choices)
    assert choices[-1]["finish_reason"] == "function_call"


def test_a_function_can_be_forced_or_hidden(reader: FrontendRun):
    for choice, is_forced, is_listed in (("auto", False, True), ({"name": "get_weather"}, True, True), ("none", 0, 0)):
        call, (message,) = send(reader, functions=[FUNCTION], function_call=choice)
        with call:
            grammar = message.sampling_params.grammar
            assert (grammar is not None and grammar.kind == "calls") == is_forced
            assert ("tools" in json.loads(chat_of(message).template_kwargs)) == is_listed
            reader.send(PromptReply(message.uid, 0, ""))
            reader.send(final(message, "Yes.", (1,), finish_reason="stop"))
            call.json()
