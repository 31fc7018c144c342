"""Calls as models of several formats write them, in each chat API: whole and streamed replies have the same calls."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from messages.config.server import HttpConfig, ModelConfig
from messages.ring.replies import PromptReply, Usage
from messages.ring.requests import TokenizeMsg
from tests.frontend.conftest import SharedRun
from tests.frontend.frontend_run import FrontendRun, final, make_config, step

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    "required": ["path", "text"],
}
FUNCTION = {"name": "write", "description": "Writes a file", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CODE = "    def f():\n\treturn 1\n\n"
JSON_CODE = json.dumps(CODE)[1:-1]
ARGUMENTS = {"path": "a.py", "text": CODE}


class Format(NamedTuple):
    """A call of `write` in two halves; the first one ends within the text."""

    parser: str
    reasoning: str
    begin: str
    end: str


FORMATS = [
    Format(
        *("hermes", "qwen3"),
        '<tool_call>\n{"name": "write", "arguments": {"path": "a.py", "text": "' + JSON_CODE,
        '"}}\n</tool_call>',
    ),
    Format(
        *("qwen3_coder", "qwen3"),
        f"<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n{CODE}",
        "\n</parameter>\n</function>\n</tool_call>",
    ),
    Format(
        *("glm45", "deepseek_r1"),
        "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n<arg_key>text</arg_key>\n<arg_value>"
        + CODE,
        "</arg_value>\n</tool_call>",
    ),
    Format(
        *("kimi_k2", "deepseek_r1"),
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"
        '{"path": "a.py", "text": "' + JSON_CODE,
        '"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
    Format(
        *("gemma4", "gemma4"),
        f'<|tool_call>call:write{{path:<|"|>a.py<|"|>,text:<|"|>{CODE}',
        '<|"|>}<tool_call|>',
    ),
    Format(*("generic", "qwen3"), '{"name": "write", "arguments": {"path": "a.py", "text": "' + JSON_CODE, '"}}'),
]
THOUGHTS = {"qwen3": "<think>", "deepseek_r1": "<think>", "gemma4": "<|channel>thought\n"}
MAX_TOKENS = 400
APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")


@pytest.fixture(scope="module", params=FORMATS, ids=lambda format: format.parser)
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[Format, SharedRun]]:
    format: Format = request.param
    model = ModelConfig(tool_call_parser=format.parser, reasoning_parser=format.reasoning)  # pyright: ignore
    config = msgspec.structs.replace(make_config(HttpConfig(port=0)), model=model)
    with contextlib.closing(SharedRun(config)) as run:
        yield format, run


@pytest.fixture
def served(shared: tuple[Format, SharedRun]) -> Iterator[tuple[Format, FrontendRun]]:
    with shared[1].lend() as run:
        yield shared[0], run


class Answer(NamedTuple):
    reasoning: str
    text: str
    calls: list[tuple[str, str]]
    """Names and arguments, as JSON."""
    end: str
    """The reason; for responses the status."""
    states: list[str]
    """The states of calls of responses."""
    ids: list[str]


def body_of(path: str, is_streamed: bool) -> dict[str, Any]:
    user = {"role": "user", "content": "hi"}
    body: dict[str, Any] = {"stream": is_streamed, "model": "m", "prompt": None}
    match path:
        case "/v1/responses":
            return {**body, "input": "hi", "tools": [{"type": "function", **FUNCTION}]}
        case "/v1/messages":
            tool = {"name": "write", "input_schema": SCHEMA}
            thinking = {"type": "adaptive"}
            return {**body, "messages": [user], "tools": [tool], "max_tokens": MAX_TOKENS, "thinking": thinking}
        case _:
            return {**body, "messages": [user], "tools": TOOLS}


def ask(server: FrontendRun, path: str, text: str, *, is_streamed: bool, reason: str = "stop") -> Answer:
    """Returns the answer of a model that writes `text`, a few characters a step."""
    call = server.call(body_of(path, is_streamed), path=path)
    message = server.take_request()
    with call:
        play(server, message, text, reason)
        if not is_streamed:
            return read_whole(path, call.json())
        raw = call.response.read().decode()
    if path == "/api/chat":
        return read_lines([json.loads(line) for line in raw.splitlines()])
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    return {"/v1/chat/completions": read_chunks, "/v1/responses": read_items, "/v1/messages": read_blocks}[path](events)


def play(server: FrontendRun, message: TokenizeMsg, text: str, reason: str) -> None:
    server.send(PromptReply(message.uid, 0, ""))
    for number, start in enumerate(range(0, len(text), 7)):
        server.send(step([(message, number % 900, text[start : start + 7])]))
    server.send(final(message, "", (99,), finish_reason=reason, usage=Usage(3, 1, MAX_TOKENS)))


def read_whole(path: str, reply: dict[str, Any]) -> Answer:
    match path:
        case "/v1/chat/completions":
            choice = reply["choices"][0]
            message = choice["message"]
            calls = message.get("tool_calls") or []
            named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            ids = [call["id"] for call in calls]
            reasoning, text = message.get("reasoning") or "", message["content"] or ""
            return Answer(reasoning, text, named, choice["finish_reason"], [], ids)
        case "/v1/responses":
            return read_output(reply)
        case "/v1/messages":
            thoughts = [block["thinking"] for block in reply["content"] if block["type"] == "thinking"]
            texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
            uses = [block for block in reply["content"] if block["type"] == "tool_use"]
            named = [(block["name"], json.dumps(block["input"])) for block in uses]
            ids = [block["id"] for block in uses]
            return Answer("".join(thoughts), "".join(texts), named, reply["stop_reason"], [], ids)
        case _:
            return read_lines([reply])


def read_output(reply: dict[str, Any]) -> Answer:
    def joined(kind: str) -> str:
        return "".join(part["text"] for item in reply["output"] if item["type"] == kind for part in item["content"])

    calls = [item for item in reply["output"] if item["type"] == "function_call"]
    named = [(item["name"], item["arguments"]) for item in calls]
    states, ids = [item["status"] for item in calls], [item["call_id"] for item in calls]
    return Answer(joined("reasoning"), joined("message"), named, reply["status"], states, ids)


def read_items(events: list[dict[str, Any]]) -> Answer:
    whole = read_output(events[-1]["response"])
    for kind, expected in (
        ("response.function_call_arguments.delta", "".join(arguments for _, arguments in whole.calls)),
        ("response.output_text.delta", whole.text),
        ("response.reasoning_text.delta", whole.reasoning),
    ):
        assert "".join(event["delta"] for event in events if event["type"] == kind) == expected
    return whole


def read_chunks(events: list[dict[str, Any]]) -> Answer:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls: list[list[str]] = []
    ids: list[str] = []
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
                ids.append(call["id"])
            calls[call["index"]][1] += call["function"]["arguments"]
    reasoning, text = ("".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content"))
    end = events[-1]["choices"][0]["finish_reason"]
    return Answer(reasoning, text, [(name, arguments) for name, arguments in calls], end, [], ids)


def read_blocks(events: list[dict[str, Any]]) -> Answer:
    blocks = {event["index"]: event["content_block"] for event in events if event["type"] == "content_block_start"}
    texts: dict[int, str] = dict.fromkeys(blocks, "")
    for event in events:
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            texts[event["index"]] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""

    def of(kind: str) -> list[int]:
        return [index for index, block in blocks.items() if block["type"] == kind]

    named = [(blocks[index]["name"], texts[index]) for index in of("tool_use")]
    ids = [blocks[index]["id"] for index in of("tool_use")]
    end = next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
    thoughts, words = ("".join(texts[index] for index in of(kind)) for kind in ("thinking", "text"))
    return Answer(thoughts, words, named, end, [], ids)


def read_lines(lines: list[dict[str, Any]]) -> Answer:
    messages = [line["message"] for line in lines]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    named = [(call["function"]["name"], json.dumps(call["function"]["arguments"])) for call in calls]
    reasoning, text = ("".join(message.get(name) or "" for message in messages) for name in ("thinking", "content"))
    return Answer(reasoning, text, named, lines[-1]["done_reason"], [], [call["id"] for call in calls])


ENDS = {
    "/v1/chat/completions": ("tool_calls", "length"),
    "/v1/responses": ("completed", "incomplete"),
    "/v1/messages": ("tool_use", "max_tokens"),
    "/api/chat": ("stop", "length"),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", APIS)
def test_indentation_and_line_ends_of_an_argument(served: tuple[Format, FrontendRun], path: str, is_streamed: bool):
    format, server = served
    got = ask(server, path, format.begin + format.end, is_streamed=is_streamed)
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == [("write", ARGUMENTS)]
    assert (got.text, got.end) == ("", ENDS[path][0])
    if format.parser == "kimi_k2":
        assert got.ids == ["functions.write:0"]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", APIS)
def test_a_call_in_an_open_thought(served: tuple[Format, FrontendRun], path: str, is_streamed: bool):
    format, server = served
    if format.parser == "generic":
        pytest.skip("its grammar lets a thought end only by its mark")
    text = f"{THOUGHTS[format.reasoning]}I write {format.begin[:9]} and so on.{format.begin}{format.end}"
    got = ask(server, path, text, is_streamed=is_streamed)
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == [("write", ARGUMENTS)]
    assert (got.reasoning, got.text) == (f"I write {format.begin[:9]} and so on.", "")
    assert got.end == ENDS[path][0]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", APIS)
def test_a_call_that_the_limit_of_tokens_cuts(served: tuple[Format, FrontendRun], path: str, is_streamed: bool):
    format, server = served
    words = "" if format.parser == "generic" else "I write. "
    got = ask(server, path, words + format.begin, is_streamed=is_streamed, reason="length")
    assert (got.text, got.end) == (words.strip(), ENDS[path][1])
    if path == "/api/chat":
        assert got.calls == [], "Ollama's arguments are an object"
        return
    ((name, arguments),) = got.calls
    is_whole_object = path == "/v1/messages" and not is_streamed
    known = json.loads(arguments if is_whole_object else arguments + '"}')
    last_line_end = format.parser == "qwen3_coder"  # it may belong to the closing tag
    assert (name, known) == ("write", {**ARGUMENTS, "text": CODE[:-1] if last_line_end else CODE})
    assert got.states == (["incomplete"] if path == "/v1/responses" else [])
