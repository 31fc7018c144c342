"""Answers of gpt-oss in each API, whole and streamed."""

import json
from collections.abc import Iterator

import msgspec
import pytest

from messages.config.server import HttpConfig, ModelConfig
from messages.ring.replies import PromptReply, Usage
from messages.ring.requests import TokenizeMsg
from tests.frontend.api.test_agent_bodies import ANTHROPIC, OPENAI, answer
from tests.frontend.frontend_run import FrontendRun, final, make_config, step

CHAT = "/v1/chat/completions"
TEXT = (
    "<|channel|>analysis<|message|>Rome, then.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Rom"}<|call|>'
)
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def harmony() -> Iterator[FrontendRun]:
    model = ModelConfig(tool_call_parser="openai", reasoning_parser="openai_gptoss")
    with FrontendRun(msgspec.structs.replace(make_config(HttpConfig(port=0)), model=model)) as run:
        yield run


def play(run: FrontendRun, message: TokenizeMsg) -> None:
    run.send(PromptReply(message.uid, 0, ""))
    for start in range(0, len(TEXT), 7):
        run.send(step([(message, 5, TEXT[start : start + 7])]))
    run.send(final(message, "", (6,), finish_reason="stop", usage=Usage(20, 16, 9)))


@pytest.mark.parametrize("stream", [True, False])
def test_chat_completions(harmony: FrontendRun, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    body = {"messages": [USER], "tools": [tool], "reasoning_effort": "high", "stream": stream}
    with harmony.call({"prompt": None, **body}, path=CHAT) as call:
        message = harmony.take_request()
        play(harmony, message)
        documents = call.events() if stream else [call.json()]
    parts = [choice for each in documents for choice in each["choices"]]
    messages = [part["delta" if stream else "message"] for part in parts]
    calls = [each["function"] for part in messages for each in part.get("tool_calls") or []]
    assert "".join(part.get("reasoning_content") or "" for part in messages) == "Rome, then."
    assert "".join(part.get("content") or "" for part in messages) == "I look."
    assert "".join(each.get("name") or "" for each in calls) == "get_weather"
    assert "".join(each["arguments"] for each in calls) == '{"city": "Rom"}'
    assert parts[-1]["finish_reason"] == "tool_calls"
    assert message.chat is not None
    assert json.loads(message.chat.template_kwargs)["reasoning_effort"] == "high"


@pytest.mark.parametrize("stream", [True, False])
def test_responses(harmony: FrontendRun, stream: bool) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    body = {"input": "hi", "tools": [tool], "reasoning": {"effort": "low"}, "stream": stream}
    reply, message = answer(harmony, OPENAI, body, TEXT)
    output = (reply[-1]["response"] if stream else reply)["output"]
    shown = [(item["type"], item.get("name"), item.get("arguments")) for item in output]
    assert shown == [
        ("reasoning", None, None),
        ("message", None, None),
        ("function_call", "get_weather", '{"city": "Rom"}'),
    ]
    assert [item["content"][0]["text"] for item in output[:2]] == ["Rome, then.", "I look."]
    assert message.chat is not None
    assert json.loads(message.chat.template_kwargs)["reasoning_effort"] == "low"


@pytest.mark.parametrize("stream", [True, False])
def test_messages(harmony: FrontendRun, stream: bool) -> None:
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    body = {"messages": [USER], "max_tokens": 99, "tools": [tool], "stream": stream}
    reply, _ = answer(harmony, ANTHROPIC, body, TEXT)
    if stream:
        deltas = [event["delta"] for event in reply if event["type"] == "content_block_delta"]
        texts = {name: "".join(each.get(name, "") for each in deltas) for name in ("thinking", "text", "partial_json")}
        assert texts == {"thinking": "Rome, then.", "text": "I look.", "partial_json": '{"city": "Rom"}'}
        assert reply[-2]["delta"]["stop_reason"] == "tool_use"
        return
    thinking, text, call = reply["content"]
    assert (thinking["thinking"], text["text"]) == ("Rome, then.", "I look.")
    assert (call["name"], call["input"], reply["stop_reason"]) == ("get_weather", {"city": "Rom"}, "tool_use")


def test_a_format_of_the_answer_leaves_the_thought_free(harmony: FrontendRun) -> None:
    """The grammar knows the channels; `tests/tokenizer_proc/test_thoughts.py` has what it takes."""
    body = {"messages": [USER], "response_format": {"type": "json_object"}}
    with harmony.call({"prompt": None, **body}, path=CHAT) as call:
        message = harmony.take_request()
        assert message.chat is not None
        assert message.chat.thought is not None
        assert message.chat.thought.answer == "<|channel|>final<|message|>"
        play(harmony, message)
        call.json()
