"""Tools with the default model, whose chat template has no place for them: an answer is a text or a valid call."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.ring.client import TIMEOUT_S, RingClient

pytestmark = pytest.mark.ring

MODEL = Path(__file__).resolve().parents[2] / "assets" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.gguf"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city", "parameters": SCHEMA}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS: Any = [{"type": "function", "function": function} for function in (WEATHER, NOW)]
QUESTIONS = ["What is the weather in Paris?", "Name three fruits."]


@pytest.fixture(scope="module")
def ring(start_ring: Any) -> RingClient:
    if not MODEL.exists():
        pytest.skip(f"{MODEL} was not fetched")
    return start_ring(MODEL, "--served-model-name", "m", "--max-model-len", "2048", "--kv-cache-memory-gb", "0.2")


@pytest.fixture
def client(ring: RingClient) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0) as client:
        yield client


def check_call(name: str, arguments: str) -> None:
    """Fails unless it is a call that the tools allow."""
    values = json.loads(arguments)
    if name == "now":
        assert values == {}
        return
    assert (name, values.keys()) == ("get_weather", {"city", "unit"})
    assert len(values["city"]) <= 12
    assert values["unit"] in ("C", "F")


def test_it_is_listed(client: OpenAI):
    assert client.models.retrieve("m").model_dump()["tool_calls"] == "generic"


NAMED: Any = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("choice", "temperature", "question"),
    [
        *(("auto", 0.0, 0), ("auto", 1.0, 1), ("auto", 0.0, 1), ("required", 0.0, 1), ("required", 1.0, 0)),
        *(("none", 0.0, 0), ("none", 1.0, 1), (NAMED, 0.0, 1), (NAMED, 1.0, 0)),
    ],
)
def test_a_chat(client: OpenAI, choice: Any, temperature: float, question: int):
    asked: Any = {
        "model": "m",
        "messages": [{"role": "user", "content": QUESTIONS[question]}],
        "tools": TOOLS,
        "tool_choice": choice,
        "temperature": temperature,
        "max_tokens": 80,
        "seed": question,
    }
    answer = client.chat.completions.create(**asked).choices[0]
    calls = answer.message.tool_calls or []
    if answer.finish_reason != "length":
        assert bool(calls) != bool(answer.message.content)
        for call in calls:
            assert call.type == "function"
            check_call(call.function.name, call.function.arguments)
    if choice != "auto":
        assert bool(calls) == (choice != "none")
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asked)]
    streamed = "".join(
        (called.function.arguments or "")
        for chunk in chunks
        for called in chunk.delta.tool_calls or []
        if called.function
    )
    assert streamed == "".join(call.function.arguments for call in calls if call.type == "function")
    assert "".join(chunk.delta.content or "" for chunk in chunks) == (answer.message.content or "")
    assert len(chunks) > 4, "it is streamed"


def test_a_result_is_part_of_the_prompt(ring: RingClient):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages: Any = [
        {"role": "user", "content": QUESTIONS[0]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "21 C, sunny"},
    ]
    body = {"messages": messages, "tools": TOOLS}
    tokens = httpx.post(f"{ring.url}/tokenize", json=body, timeout=TIMEOUT_S).json()["tokens"]
    prompt = httpx.post(f"{ring.url}/detokenize", json={"tokens": tokens}, timeout=TIMEOUT_S).json()["prompt"]
    system, question, call_text, result = (
        prompt.index(text) for text in ("Get the weather", QUESTIONS[0], "get_weather", "21 C, sunny")
    )
    assert system < question < result
    assert call_text < result


def test_the_other_apis(ring: RingClient, client: OpenAI):
    tools: Any = [{"type": "function", **function} for function in (WEATHER, NOW)]
    response = client.responses.create(
        model="m", input=QUESTIONS[0], tools=tools, tool_choice="required", temperature=0, parallel_tool_calls=False
    )
    (item,) = response.output
    assert item.type == "function_call"
    check_call(item.name, item.arguments)
    from anthropic import Anthropic

    with Anthropic(base_url=ring.url, api_key="none", timeout=TIMEOUT_S, max_retries=0) as anthropic:
        message = anthropic.messages.create(
            model="m",
            max_tokens=100,
            messages=[{"role": "user", "content": QUESTIONS[0]}],
            tools=[{"name": "get_weather", "input_schema": SCHEMA}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )
    (block,) = message.content
    assert block.type == "tool_use"
    check_call(block.name, json.dumps(block.input))
    user = {"role": "user", "content": QUESTIONS[1]}
    body = {"model": "m", "messages": [user], "tools": TOOLS, "options": {"temperature": 0}, "stream": False}
    reply = httpx.post(f"{ring.url}/api/chat", json=body, timeout=TIMEOUT_S).json()["message"]
    assert reply["content"] or reply["tool_calls"]
