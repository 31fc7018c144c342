"""Tools and reasoning through the whole ring, with a model that says what it is told to.

What `openai`'s client makes of them, and streams whose processes are killed in the middle of a call.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.ring.client import TIMEOUT_S, RingClient
from tests.scripted_model import build_scripted_model

pytestmark = pytest.mark.ring

MAX_TRIES = 5
NUM_CHUNKS_BEFORE = 30

WEATHER = {"city": "Zürich 😀", "notes": [f'Satz {n}: «ä\\n"{n * n}"»' for n in range(20)], "days": 2}
FIRST = (
    "The user asks for the weather in Zürich.\n</think>\n\nOne moment, bitte schön.\n<tool_call>\n"
    f'{{"name": "get_weather", "arguments": {json.dumps(WEATHER, ensure_ascii=False)}}}\n</tool_call>\n<tool_call>\n'
    '{"name": "now", "arguments": {}}\n</tool_call>'
)
SECOND = "Now I know.\n</think>\n\nIt is 21 °C and sunny."
PLAIN = "Guten Tag!"

CHAT_TEMPLATE = """\
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them as <tool_call>.
{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
    {%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{% endfor %}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}
{%- else %}{{ '<think>\\n\\n' if messages[-1].role == 'tool' else '<think>\\n' }}{%- endif %}
"""
SCRIPTS = {"<think>\n": FIRST, "<think>\n\n": SECOND, "</think>\n\n": PLAIN}


class GetWeather(BaseModel):
    city: str
    notes: list[str]
    days: int


class Now(BaseModel):
    pass


TOOLS: Any = [
    openai.pydantic_function_tool(GetWeather, name="get_weather"),
    openai.pydantic_function_tool(Now, name="now"),
]
QUESTION: Any = {"role": "user", "content": "How is the weather in Zürich?"}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, start_ring: Any) -> RingClient:
    path = tmp_path_factory.mktemp("scripted")
    build_scripted_model(path, SCRIPTS, CHAT_TEMPLATE)
    return start_ring(path, "--dtype", "float32", "--served-model-name", "m", "--max-restarts-per-min", "100")


@pytest.fixture
def client(ring: RingClient) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def test_a_round_trip_of_a_tool_in_streams(client: OpenAI):
    with client.chat.completions.stream(model="m", messages=[QUESTION], tools=TOOLS) as stream:
        events = list(stream)
        choice = stream.get_final_completion().choices[0]
    message: Any = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", "One moment, bitte schön.")
    weather, now = message.tool_calls
    assert weather.function.parsed_arguments == GetWeather(**WEATHER)
    assert (now.function.name, now.function.arguments) == ("now", "{}")
    pieces: list[Any] = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len([piece for piece in pieces if piece.name == "get_weather" and piece.arguments_delta]) > 30
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": "21 °C" if call is weather else "noon"}
        for call in message.tool_calls
    ]
    history: Any = [QUESTION, message.model_dump(exclude_none=True), *answers]
    with client.chat.completions.stream(model="m", messages=history, tools=TOOLS) as stream:
        final = stream.get_final_completion().choices[0]
    assert (final.finish_reason, final.message.content) == ("stop", "It is 21 °C and sunny.")
    assert final.message.model_dump()["reasoning"] == "Now I know."


def test_whole_replies_and_a_template_that_closes_the_thought(client: OpenAI):
    choice = client.chat.completions.create(model="m", messages=[QUESTION], tools=TOOLS).choices[0]
    calls: Any = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [WEATHER, {}]
    assert choice.message.model_dump()["reasoning_content"] == "The user asks for the weather in Zürich."
    no_thought: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    choice = client.chat.completions.create(model="m", messages=[QUESTION], tools=TOOLS, extra_body=no_thought).choices[
        0
    ]
    assert (choice.message.content, choice.message.model_dump()["reasoning"]) == (PLAIN, None)
    assert choice.finish_reason == "stop"


class Seen:
    """What the chunks of a stream add up to."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.num_tokens = 0

    def add(self, chunk: dict[str, Any]) -> None:
        assert "error" not in chunk, chunk
        if chunk["usage"]:
            self.num_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            self.content += delta.get("content", "")
            self.reasoning += delta.get("reasoning", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(self.calls)
                    self.calls.append({"name": call["function"]["name"], "arguments": ""})
                self.calls[call["index"]]["arguments"] += call["function"]["arguments"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason


def stream_raw(ring: RingClient, kill: str | None = None) -> Seen:
    """Returns what a stream adds up to whose ring loses process `kill` in the middle of the first call."""
    request = {"messages": [QUESTION], "tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}}
    seen, num_chunks = Seen(), 0
    with httpx.stream("POST", f"{ring.url}/v1/chat/completions", json=request, timeout=TIMEOUT_S) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                seen.add(json.loads(line[6:]))
                num_chunks += bool(seen.calls)
                if num_chunks == NUM_CHUNKS_BEFORE and kill is not None:
                    assert len(seen.calls) == 1
                    ring.kill(kill)
                    kill = None
    return seen


def num_continued(ring: RingClient) -> float:
    text = httpx.get(f"{ring.url}/metrics", timeout=TIMEOUT_S).text
    (line,) = (line for line in text.splitlines() if line.startswith("sluice_continuations_total"))
    return float(line.split()[-1])


@pytest.mark.parametrize("process", ["scheduler", "detokenizer"])
def test_a_call_goes_on_when_a_process_dies_in_the_middle_of_it(ring: RingClient, process: str):
    expected = stream_raw(ring)
    assert [call["name"] for call in expected.calls] == ["get_weather", "now"]
    assert json.loads(expected.calls[0]["arguments"]) == WEATHER
    for _ in range(MAX_TRIES):
        before, num_restarts = num_continued(ring), ring.status(process)["num_restarts"]
        assert vars(stream_raw(ring, kill=process)) == vars(expected)
        ring.wait_for_restart(process, num_restarts + 1)
        if num_continued(ring) > before:
            return
    raise AssertionError(f"the {process} never died in mid-stream")
