"""Recorded requests of coding agents, whose answers are parsed by the types of their own SDKs.

Claude Code 2.1.197 and Codex CLI 0.169.0 sent the bodies in `agents/`; long texts are cut, and ids are zeros.
"""

import functools
import importlib
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter

from frontend.api.answers.tools import ToolUse, choose_tools
from frontend.api.responses.tools import CustomFormat, ResponseChoice, ResponseTool, read_choice, tool_use
from frontend.parsing.model_format import choose_format
from messages.errors import RequestError
from messages.ring.replies import PrefilledRow, PromptReply, Usage
from messages.ring.requests import TokenizeMsg
from tests.frontend.api.sse_events import named_events
from tests.frontend.frontend_run import FrontendRun, final, step

BODIES = Path(__file__).with_name("agents")
ANTHROPIC, OPENAI = "/v1/messages?beta=true", "/v1/responses"
UNREAD = "[This is left out: the model cannot read it.]"
PATCH = '*** Begin Patch\n*** Update File: a.txt\n@@\n-ä\n+"b\\n"\n*** End Patch'


@functools.cache
def checker(module: str, name: str) -> TypeAdapter[Any]:
    """Returns what validates values of an SDK's type. The SDKs take seconds, and every worker imports this file."""
    return TypeAdapter(getattr(importlib.import_module(module), name))


def body_of(name: str) -> dict[str, Any]:
    return json.loads((BODIES / f"{name}.json").read_text(encoding="utf-8"))


def call_text(name: str, **arguments: Any) -> str:
    return f"Well.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def reported(message: TokenizeMsg) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the messages and the names of the tools that the model sees."""
    assert message.chat is not None
    tools = json.loads(message.chat.template_kwargs)["tools"]
    return json.loads(message.chat.messages), {tool["function"]["name"]: tool["function"] for tool in tools}


def answer(run: FrontendRun, path: str, body: dict[str, Any], text: str) -> tuple[Any, TokenizeMsg]:
    """Returns the events, or the whole reply, that an answer of `text` gives, and the request in the ring."""
    with run.call({"prompt": None, **body}, path=path) as call:
        message = run.take_request()
        run.send(PromptReply(message.uid, 0, ""))
        prefilled = (PrefilledRow(message.uid, 0, Usage(20, 16)),)
        for start in range(0, len(text), 7):
            run.send(step([(message, 5, text[start : start + 7])], prefilled=prefilled))
            prefilled = ()
        run.send(final(message, "", (6,), finish_reason="stop", usage=Usage(20, 16, 9)))
        return named_events(call) if body["stream"] else call.json(), message


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("claude_code", ["1\tThe magic word is xylophone.\n2\t", "29 notes.txt"]),
        ("claude_code_image", [UNREAD, "Web search results for query"]),
    ],
)
def test_claude_code(reader: FrontendRun, name: str, results: list[str], stream: bool):
    body = {**body_of(name), "stream": stream}
    reply, message = answer(reader, ANTHROPIC, body, call_text("Read", file_path="/a"))
    messages, tools = reported(message)
    assert list(tools) == [tool["name"] for tool in body["tools"]]
    assert tools["Read"]["parameters"]["required"] == ["file_path"]
    assert messages[0]["content"].startswith("You are a Claude agent")  # not the line for the bill
    returned = [each["content"] for each in messages if each["role"] == "tool"]
    assert [text[: len(result)] for text, result in zip(returned, results, strict=True)] == results
    assert all(each["tool_calls"] for each in messages if each["role"] == "assistant")
    if stream:
        for event in reply:
            checker("anthropic.types", "RawMessageStreamEvent").validate_python(event)
        parts = [event["delta"]["partial_json"] for event in reply if "partial_json" in event.get("delta", {})]
        arguments, stop = json.loads("".join(parts)), reply[-2]["delta"]["stop_reason"]
    else:
        checker("anthropic.types", "Message").validate_python(reply)
        arguments, stop = reply["content"][-1]["input"], reply["stop_reason"]
    assert (arguments, stop) == ({"file_path": "/a"}, "tool_use")


def test_the_web_search_of_claude_code_is_refused_by_name(reader: FrontendRun):
    refused = reader.client.post(ANTHROPIC, json=body_of("claude_code_web_search"))
    assert refused.status_code == 400
    assert "tools[0]: a tool of type 'web_search_20250305' is not supported" in refused.json()["error"]["message"]


CODEX_CALLS = {
    "codex": (call_text("multi_agent_v1.close_agent", target="1"), ("function_call", "close_agent", "multi_agent_v1")),
    "codex_image": (call_text("exec_command", cmd="ls"), ("function_call", "exec_command", None)),
    "codex_gpt": (call_text("apply_patch", input=PATCH), ("custom_tool_call", "apply_patch", None)),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CODEX_CALLS)
def test_codex(reader: FrontendRun, name: str, stream: bool):
    text, shown = CODEX_CALLS[name]
    body = {**body_of(name), "stream": stream}
    reply, message = answer(reader, OPENAI, body, text)
    if stream:
        for event in reply:
            checker("openai.types.responses", "ResponseStreamEvent").validate_python(event)
        kind = "custom_tool_call_input" if shown[0] == "custom_tool_call" else "function_call_arguments"
        deltas = [event["delta"] for event in reply if event["type"] == f"response.{kind}.delta"]
        (done,) = [event for event in reply if event["type"] == f"response.{kind}.done"]
        assert len(deltas) > 1
        assert "".join(deltas) == done.get("input", done.get("arguments"))
        reply = reply[-1]["response"]
    checker("openai.types.responses", "Response").validate_python(reply)
    call = reply["output"][-1]
    assert (call["type"], call["name"], call.get("namespace")) == shown
    expected = PATCH if name == "codex_gpt" else json.dumps(json.loads(text.splitlines()[2])["arguments"])
    assert call.get("input", call.get("arguments")) == expected
    messages, tools = reported(message)
    assert not {"web_search", "tool_search", None} & tools.keys()
    calls = [call["function"] for each in messages for call in each.get("tool_calls", [])]
    if name == "codex":
        assert [call["name"] for call in calls] == ["exec_command", "multi_agent_v1.close_agent"]
        assert "multi_agent_v1.spawn_agent" in tools
    elif name == "codex_image":
        assert [each["content"] for each in messages if each["role"] == "tool"][1] == UNREAD
    else:
        assert calls[1]["arguments"]["input"].startswith("*** Begin Patch")
        assert messages[-1]["content"].startswith("Exit code: 0")
        assert "begin_patch hunk+ end_patch" in tools["apply_patch"]["description"]


def test_a_response_continues_from_a_stored_custom_call(reader: FrontendRun):
    tools = [
        {"type": "custom", "name": "run"},
        {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "f"}]},
    ]
    first, _ = answer(reader, OPENAI, {"input": "hi", "tools": tools, "stream": False}, call_text("n.f", input="ls"))
    call = first["output"][-1]
    assert (call["type"], call["name"], call["namespace"], call["input"]) == ("custom_tool_call", "f", "n", "ls")
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "a.py"}
    asked = {"previous_response_id": first["id"], "input": [result], "tools": tools, "stream": False}
    _, message = answer(reader, OPENAI, asked, "One.")
    _, assistant, tool = reported(message)[0]
    assert assistant["tool_calls"][0]["function"] == {"name": "n.f", "arguments": {"input": "ls"}}
    assert tool["content"] == "a.py"


def test_a_forced_call_keeps_to_a_regex_and_cannot_keep_to_lark():
    hermes = choose_format("hermes", "none", "")

    def chosen(syntax: Literal["regex", "lark"], choice: ResponseChoice | Literal["required"]) -> ToolUse:
        form = CustomFormat(type="grammar", syntax=syntax, definition="[a-z]+")
        use = tool_use([ResponseTool(type="custom", name="f", format=form)])
        return choose_tools(use, read_choice(choice), hermes, allows_several=True)

    named = ResponseChoice(type="custom", name="f")
    for forced in (chosen("regex", named).forced, chosen("regex", "required").forced):
        assert forced is not None
        assert forced.calls is not None
        ((_, schema, _),) = forced.calls.calls
        assert b'"pattern":"^(?:[a-z]+)$"' in (schema or b"")
    with pytest.raises(RequestError, match="'f' cannot be forced: its input is a grammar in Lark's form"):
        chosen("lark", named)
