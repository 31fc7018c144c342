"""`/v1/messages`: the prompt and the reply, with a ring played by the test."""

import json
from typing import Any

import pytest

from frontend.api.anthropic.reply import MessageEvents
from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import EncodeReply, PrefilledRow, PromptReply, Usage
from messages.ring.requests import EncodeMsg, TokenizeMsg
from tests.frontend.api.sse_events import named_events, next_event
from tests.frontend.frontend_run import Call, FrontendRun, final, step

PATH = "/v1/messages"
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
TEXT = (
    '<think>\nHm\n</think>\n\nWell.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)
CACHED = {"cache_control": {"type": "ephemeral"}}

CLAUDE_CODE = {
    "model": "m",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1"},
        {"type": "text", "text": "You are Claude Code.", **CACHED},
        {"type": "text", "text": "Be concise.", **CACHED},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>"},
                {"type": "text", "text": "List the files.", **CACHED},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I use ls.", "signature": "abc"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {"command": "pwd"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"tool_use_id": "toolu_1", "type": "tool_result", "content": "a.py", "is_error": False},
                {
                    "tool_use_id": "toolu_2",
                    "type": "tool_result",
                    "content": [{"type": "text", "text": "/"}],
                    **CACHED,
                },
                {"type": "text", "text": "<system-reminder> again"},
            ],
        },
    ],
    "tools": [
        {"name": "Bash", "description": "runs", "input_schema": {"type": "object"}, "eager_input_streaming": True}
    ],
    "metadata": {"user_id": "user_0123_account__session_0198f2d7"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "stream": True,
}
"""As Claude Code sends its second request of a turn."""
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "x-api-key": "none",
}


def send(run: FrontendRun, path: str = PATH, **body: Any) -> tuple[Call, TokenizeMsg]:
    call = run.call({"max_tokens": 99, "messages": [USER], "prompt": None, **body}, HEADERS, path)
    return call, run.take_request()


def play(run: FrontendRun, message: TokenizeMsg, text: str = TEXT, **end: Any) -> None:
    """Answers with `text`, in steps of some characters, after a prompt of 20 tokens."""
    run.send(PromptReply(message.uid, 0, ""))
    prefilled = (PrefilledRow(message.uid, 0, Usage(20, 16)),)
    for start in range(0, len(text), 7):
        run.send(step([(message, 5, text[start : start + 7])], prefilled=prefilled))
        prefilled = ()
    run.send(final(message, "", (6,), **{"finish_reason": "stop", "usage": Usage(20, 16, 9), **end}))


def ask(run: FrontendRun, text: str = "Yes.", end: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    call, message = send(run, **body)
    with call:
        play(run, message, text, **(end or {}))
        return call.json()


def test_a_whole_message(reader: FrontendRun):
    reply = ask(reader, TEXT, tools=[TOOL], model="m")
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "m")
    thinking, text, call = reply["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Well."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Rom"})
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("tool_use", None)
    assert reply["usage"] == {
        "input_tokens": 4,
        "cache_read_input_tokens": 16,
        "output_tokens": 9,
        "cache_creation_input_tokens": 0,
    }


@pytest.mark.parametrize("headers", [{}, {"X-Request-Id": "mine"}])
def test_the_id_of_the_request_is_where_clients_of_this_api_look_for_it(reader: FrontendRun, headers: dict[str, str]):
    for stream in (False, True):
        call = reader.call({"max_tokens": 99, "messages": [USER], "prompt": None, "stream": stream}, headers, PATH)
        message = reader.take_request()
        with call:
            play(reader, message)
            ids = [call.response.getheader(name) for name in ("request-id", "x-request-id")]
            assert ids[0] == ids[1] == headers.get("X-Request-Id", ids[0])
            call.response.read()
    refused = reader.client.post(PATH, json={}, headers=headers)
    assert refused.headers["request-id"] == refused.headers["x-request-id"]
    assert "request-id" not in reader.client.get("/version").headers


def test_a_client_that_would_have_its_conversation_kept_is_notified_to_send_it(reader: FrontendRun):
    """Its second request has only a tool result; an answer to that alone would make no sense."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        refused = reader.client.post(PATH, json={"max_tokens": 9, "messages": [USER], "thread": thread})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}
    other = reader.client.post(PATH, json={"max_tokens": 9, "messages": [USER], "container": "x"}).json()["error"]
    assert "details" not in other


def test_the_events_of_a_stream_add_up_to_the_message(reader: FrontendRun):
    call, message = send(reader, tools=[TOOL], stream=True)
    with call:
        play(reader, message)
        start, *events, delta, stop = named_events(call)
    assert start["message"]["content"] == []
    assert (start["message"]["usage"]["input_tokens"], start["message"]["stop_reason"]) == (4, None)
    assert (delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]) == ("tool_use", 9)
    assert (stop["type"], call.next_event()) == ("message_stop", "")
    blocks = [[event for event in events if event["index"] == index] for index in range(3)]
    assert [event for block in blocks for event in block] == events
    deltas: list[list[dict[str, Any]]] = []
    for block in blocks:
        assert [block[0]["type"], block[-1]["type"]] == ["content_block_start", "content_block_stop"]
        assert {event["type"] for event in block[1:-1]} == {"content_block_delta"}
        deltas.append([event["delta"] for event in block[1:-1]])
    assert [block[0]["content_block"]["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[2][0]["content_block"]["input"] == {}
    assert "".join(each["thinking"] for each in deltas[0][:-1]) == "Hm"
    assert deltas[0][-1]["type"] == "signature_delta"
    assert "".join(each["text"] for each in deltas[1]) == "Well."
    assert json.loads("".join(each["partial_json"] for each in deltas[2])) == {"city": "Rom"}


def test_what_claude_code_sends_is_a_chat(reader: FrontendRun):
    call, message = send(reader, f"{PATH}?beta=true", **CLAUDE_CODE)
    with call:
        assert message.chat is not None
        chat = json.loads(message.chat.messages)
        assert [(each["role"], each.get("content"), each.get("tool_call_id")) for each in chat] == [
            ("system", "You are Claude Code.\n\nBe concise.", None),
            ("user", "<system-reminder>\n\nList the files.", None),
            ("assistant", "I look.", None),
            ("tool", "a.py", "toolu_1"),
            ("tool", "/", "toolu_2"),
            ("user", "<system-reminder> again", None),
        ]
        assert chat[2]["reasoning_content"] == "I use ls."
        calls = [(each["id"], each["function"]["arguments"]) for each in chat[2]["tool_calls"]]
        assert calls == [("toolu_1", {"command": "ls"}), ("toolu_2", {"command": "pwd"})]
        kwargs = json.loads(message.chat.template_kwargs)
        assert [tool["function"]["name"] for tool in kwargs.pop("tools")] == ["Bash"]
        assert kwargs == {"enable_thinking": True, "thinking": True, "reasoning_effort": "medium"}
        assert message.chat.add_generation_prompt
        assert message.chat.thought is not None
        assert (message.chat.thought.budget, message.chat.thought.is_off) == (31999, False)
        play(reader, message, "a.py")
        assert named_events(call)[-1]["type"] == "message_stop"


def test_who_does_not_ask_for_thinking_gets_none_and_a_last_message_of_the_assistant_continues(reader: FrontendRun):
    call, message = send(reader, messages=[USER, {"role": "assistant", "content": "The answer is"}])
    with call:
        assert message.chat is not None
        assert json.loads(message.chat.template_kwargs) == {"enable_thinking": False, "thinking": False}
        assert (message.chat.continue_final_message, message.chat.add_generation_prompt) == (True, False)
        assert message.chat.thought is not None
        assert (message.chat.thought.budget, message.chat.thought.is_off) == (None, False)
        play(reader, message, " 42.")
        assert call.json()["content"] == [{"type": "text", "text": " 42."}]


@pytest.mark.parametrize(
    ("end", "stop_reason", "stop_sequence"),
    [
        ({}, "end_turn", None),
        ({"stop_reason": "x"}, "stop_sequence", "x"),
        ({"stop_reason": 2}, "end_turn", None),
        ({"finish_reason": "length", "usage": Usage(20, 0, 99)}, "max_tokens", None),
        ({"finish_reason": "length", "usage": Usage(20, 0, 9)}, "model_context_window_exceeded", None),
        ({"finish_reason": "abort"}, "max_tokens", None),
    ],
)
def test_why_a_message_ends(reader: FrontendRun, end: dict[str, Any], stop_reason: str, stop_sequence: str | None):
    reply = ask(reader, "Yes.", end, stop_sequences=["x"])
    assert (reply["stop_reason"], reply["stop_sequence"]) == (stop_reason, stop_sequence)


def test_a_call_whose_arguments_are_no_json_is_text(reader: FrontendRun):
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": oops}}\n</tool_call>'
    reply = ask(reader, text, tools=[TOOL])
    assert (reply["content"], reply["stop_reason"]) == ([{"type": "text", "text": text}], "end_turn")


@pytest.mark.parametrize(
    ("end", "stop_reason"),
    [
        ({"finish_reason": "stop", "stop_reason": "x"}, "stop_sequence"),
        ({"finish_reason": "length", "usage": Usage(20, 0, 99)}, "max_tokens"),
    ],
)
def test_a_call_that_is_cut_is_not_to_be_run(reader: FrontendRun, end: dict[str, Any], stop_reason: str):
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro'
    reply = ask(reader, text, end, tools=[TOOL], stop_sequences=["x"])
    (block,) = reply["content"]
    assert (block["type"], block["input"], reply["stop_reason"]) == ("tool_use", {"city": "Ro"}, stop_reason)
    call, message = send(reader, tools=[TOOL], stream=True, stop_sequences=["x"])
    with call:
        play(reader, message, text, **end)
        *events, delta, _ = named_events(call)
    assert delta["delta"]["stop_reason"] == stop_reason
    assert "".join(event["delta"]["partial_json"] for event in events if "delta" in event) == '{"city": "Ro'


def test_a_thought_has_the_budget_that_is_requested(reader: FrontendRun):
    for thinking, budget in (
        ({"type": "enabled", "budget_tokens": 1024}, 1024),
        ({"type": "enabled"}, None),
        ({"type": "adaptive", "budget_tokens": 5}, None),
        ({"type": "disabled", "budget_tokens": 5}, None),
    ):
        call, message = send(reader, thinking=thinking, max_tokens=1025)
        with call:
            assert message.chat is not None
            assert message.chat.thought is not None
            assert message.chat.thought.budget == budget
            assert message.chat.thought.is_off == (thinking["type"] == "disabled")
            play(reader, message, "Yes.")
            assert call.json()["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("budget", "max_tokens", "words"),
    [
        (1023, 5000, "thinking.budget_tokens must be at least 1024, got 1023"),
        (0, 5000, "must be at least 1024, got 0"),
        (1024, 1024, "max_tokens must be greater than thinking.budget_tokens, got 1024 and 1024"),
        (9000, 5000, "got 5000 and 9000"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(reader: FrontendRun, budget: int, max_tokens: int, words: str):
    thinking = {"type": "enabled", "budget_tokens": budget}
    refused = reader.client.post(PATH, json={"max_tokens": max_tokens, "messages": [USER], "thinking": thinking})
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert words in refused.json()["error"]["message"]


def test_the_choice_of_a_tool(server: FrontendRun, reader: FrontendRun):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        call, message = send(reader, tools=[TOOL], tool_choice=choice)
        with call:
            grammar = message.sampling_params.grammar
            assert grammar is not None
            assert (grammar.kind, grammar.param) == ("calls", "tools")
            play(reader, message)
            assert call.json()["stop_reason"] == "tool_use"
    call, message = send(reader, tools=[TOOL], tool_choice={"type": "none"})
    with call:
        assert message.chat is not None
        assert b"get_weather" not in message.chat.template_kwargs
        play(reader, message, "No.")
        assert call.json()["stop_reason"] == "end_turn"
    refused = server.client.post(PATH, json={"max_tokens": 9, "messages": [USER], "tools": [TOOL]})
    assert "--tool-call-parser" in refused.json()["error"]["message"]


@pytest.mark.parametrize("is_older", [False, True])
def test_the_format_of_the_output_is_a_grammar(reader: FrontendRun, is_older: bool):
    output: Any = {"type": "json_schema", "schema": {"type": "string"}}
    asked: Any = {"output_format": output} if is_older else {"output_config": {"format": output}}
    call, message = send(reader, **asked, stop_sequences=["END"], top_k=5)
    with call:
        params = message.sampling_params
        assert params.grammar is not None
        assert (params.grammar.text, params.grammar.param) == ('{"type": "string"}', "output_config.format")
        assert (params.stop, params.top_k, params.max_tokens) == (("END",), 5, 99)
        play(reader, message, '"a"')
        call.json()


def test_tokens_are_counted_as_the_prompt_has_them(reader: FrontendRun):
    counted = {
        name: CLAUDE_CODE[name] for name in ("model", "system", "messages", "tools", "thinking", "output_config")
    }
    call, message = send(reader, **{**CLAUDE_CODE, "stream": False})
    with call:
        play(reader, message)
        call.json()
    asked = reader.ask(f"{PATH}/count_tokens", counted)
    question = reader.take(EncodeMsg)
    assert (question.chat, question.add_special_tokens) == (message.chat, message.add_special_tokens)
    reader.send(EncodeReply(question.uid, pack_int32(range(12))))
    assert asked.response().json() == {"input_tokens": 12}


def test_errors_are_anthropics(server: FrontendRun):
    bad = server.client.post(PATH, json={"messages": [USER]})
    assert bad.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens is required"},
    }
    unknown = server.client.post(PATH, json={"max_tokens": 9, "messages": [USER], "model": "claude"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    assert server.client.get(PATH).json()["error"]["type"] == "invalid_request_error"
    large = server.post_raw(PATH, b" " * 200_000)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    for stream in (False, True):
        call, message = send(server, stream=stream)
        with call:
            error = ErrorInfo(400, "…", param="messages", code="context_length_exceeded", too_long=(501, 255))
            server.send(final(message, finish_reason="error", error=error))
            text = "prompt is too long: 501 tokens > 255 maximum"
            assert call.response.status == 400
            assert call.json() == {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    call, message = send(server)
    with call:
        server.send(final(message, finish_reason="error", error=ErrorInfo(503, "ending", "service_unavailable")))
        assert (call.response.status, call.json()["error"]["type"]) == (503, "overloaded_error")


def test_a_long_silence_is_broken_with_a_ping():
    assert MessageEvents.keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_an_error_in_a_stream_is_its_last_event(server: FrontendRun):
    call, message = send(server, stream=True)
    with call:
        server.send(step([(message, 5, "Yes")]))
        assert next_event(call)["type"] == "message_start"
        server.send(final(message, finish_reason="error", error=ErrorInfo(500, "out of luck")))
        assert named_events(call)[-1] == {"type": "error", "error": {"type": "api_error", "message": "out of luck"}}


def test_documents_and_search_results_reach_the_model(reader: FrontendRun):
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "one"}}
    search = {"type": "search_result", "source": "s", "title": "S", "content": [{"type": "text", "text": "two"}]}
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [document, search, image]}
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    turns = [
        {"role": "user", "content": [document, search]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    call, message = send(reader, messages=turns, tools=[TOOL])
    with call:
        assert message.chat is not None
        asked, _, answered = json.loads(message.chat.messages)
        texts = "T\n\none\n\nS\ns\n\ntwo"
        assert asked["content"] == texts
        assert answered["content"].startswith(f"{texts}\n\n[This is left out")
        play(reader, message)
        call.json()
