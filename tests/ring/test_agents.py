"""A model that was trained to call tools (assets/tool-caller), with SDKs and agents as they are.

Questions, calls, results of tools and answers go through the clients' own loops, also while the scheduler dies.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.ring.client import TIMEOUT_S, RingClient

pytestmark = pytest.mark.ring

ROOT = Path(__file__).resolve().parents[2]
NPM = Path(__file__).with_name("npm")
MAX_TRIES = 20
RESULTS = {"get_weather": "foggy, 13 degrees", "get_time": "12:30"}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in RESULTS
]
QUESTION: Any = {"role": "user", "content": "How is the weather in Oslo?"}
ANSWER = "It is foggy, 13 degrees in Oslo."


@pytest.fixture(scope="module")
def ring(start_ring: Any) -> RingClient:
    flags = ("--dtype", "float32", "--served-model-name", "m", "--max-restarts-per-min", "100")
    return start_ring(ROOT / "assets" / "tool-caller", *flags)


@pytest.fixture
def client(ring: RingClient) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def ask(client: OpenAI, messages: list[Any], *, stream: bool, **fields: Any) -> Any:
    """Returns the choice of a chat with the tools."""
    if not stream:
        return client.chat.completions.create(model="m", messages=messages, tools=TOOLS, **fields).choices[0]
    with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS, **fields) as events:
        return events.get_final_completion().choices[0]


def answer_calls(messages: list[Any], choice: Any) -> list[tuple[str, str]]:
    """Adds the assistant's message and the results of its calls. Returns the calls."""
    messages.append(choice.message.model_dump(exclude_none=True))
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    for call in choice.message.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})
    return calls


@pytest.mark.parametrize("stream", [False, True])
def test_questions_calls_results_and_answers(client: OpenAI, stream: bool):
    messages: list[Any] = [QUESTION]
    for question, name, city, answer in (
        (QUESTION["content"], "get_weather", "Oslo", ANSWER),
        ("What time is it in Lima?", "get_time", "Lima", "It is 12:30 in Lima."),
    ):
        messages[-1:] = [{"role": "user", "content": question}]
        choice = ask(client, messages, stream=stream)
        assert choice.finish_reason == "tool_calls"
        assert answer_calls(messages, choice) == [(name, f'{{"city": "{city}"}}')]
        choice = ask(client, messages, stream=stream)
        assert (choice.finish_reason, choice.message.content) == ("stop", answer)
        messages += [choice.message.model_dump(exclude_none=True), None]


def test_without_tools_there_is_no_call_and_a_choice_forces_another(client: OpenAI):
    choice = client.chat.completions.create(model="m", messages=[QUESTION]).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("I have no tool for that.", None)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": TOOLS[1:]}}
    for tool_choice in ({"type": "function", "function": {"name": "get_time"}}, allowed):
        ((name, _),) = answer_calls([], ask(client, [QUESTION], stream=False, tool_choice=tool_choice, max_tokens=200))
        assert name == "get_time"


def test_a_call_continues_when_the_scheduler_dies_in_the_middle_of_it(ring: RingClient, client: OpenAI):
    """It dies at the first piece of each try, until one was not over before."""
    for _ in range(MAX_TRIES):
        before, status = ring.num_continued(), ring.status("scheduler")
        messages: list[Any] = [QUESTION]
        with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:
            next(events)
            os.kill(status["pid"], signal.SIGKILL)
            choice = events.get_final_completion().choices[0]
        assert answer_calls(messages, choice) == [("get_weather", '{"city": "Oslo"}')]
        assert ask(client, messages, stream=False).message.content == ANSWER
        ring.wait_for_restart("scheduler", status["num_restarts"] + 1)
        if ring.num_continued() > before:
            return
    raise AssertionError("the scheduler never died in the middle of a call")


@pytest.mark.parametrize("api", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_an_agent(ring: RingClient, api: str):
    agents: Any = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim[openai] is not installed")
    models: Any = pytest.importorskip("pydantic_ai.models.openai")
    providers: Any = pytest.importorskip("pydantic_ai.providers.openai")
    agent = agents.Agent(instructions="Be brief.")
    asked: list[tuple[str, str]] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        asked.append(("get_weather", city))
        return RESULTS["get_weather"]

    @agent.tool_plain
    def get_time(city: str) -> str:
        asked.append(("get_time", city))
        return RESULTS["get_time"]

    async def talk() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
            model = getattr(models, api)("m", provider=providers.OpenAIProvider(openai_client=client))
            first = await agent.run(QUESTION["content"], model=model)
            history = first.all_messages()
            async with agent.run_stream("What time is it in Lima?", model=model, message_history=history) as second:
                return first.output, await second.get_output()

    assert asyncio.run(talk()) == (ANSWER, "It is 12:30 in Lima.")
    assert asked == [("get_weather", "Oslo"), ("get_time", "Lima")]


@pytest.mark.parametrize("stream", [False, True])
def test_the_loop_of_tools_of_the_messages_client(ring: RingClient, stream: bool):
    """It asks for a thread first, and sends the whole conversation when there is none."""
    from anthropic import Anthropic, beta_tool  # here, because it takes seconds and every worker imports this file

    asked: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Returns the weather.

        Args:
            city: Where.
        """
        asked.append(city)
        return RESULTS["get_weather"]

    with Anthropic(base_url=ring.url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=500, tools=[get_weather], messages=[QUESTION], stream=stream
        )
        last: Any = runner.until_done()
    assert (last.content[0].text, asked) == (ANSWER, ["Oslo"])


def test_the_sdks_for_javascript(ring: RingClient):
    node = shutil.which("node")
    if node is None or not (NPM / "node_modules").is_dir():
        pytest.skip("the SDKs are not installed: npm install --prefix tests/ring/npm")
    done = subprocess.run(
        [node, str(NPM / "check.mjs"), ring.url], capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
