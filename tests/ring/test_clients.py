"""Clients and programs of others, with a server of two models, of which assets/tool-caller answers.

Each sends its requests as they were recorded (`clients/`, read by `recorded.py`); Ollama's own clients run as they
are, if they are installed.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ring.client import BARD_DIR, TIMEOUT_S
from tests.ring.model_ring import ModelRing, model_ring, wait_for
from tests.ring.recorded import RECORDED, check, read_calls
from tests.ring.test_agents import ANSWER, NPM, QUESTION, RESULTS, ROOT, TOOLS

pytestmark = pytest.mark.ring

NO_TOOL = "I have no tool for that."
GREEDY = {"temperature": 0, "num_predict": 50}


@pytest.fixture(scope="module")
def ring() -> Iterator[ModelRing]:
    models = ("--model", f"m={ROOT / 'assets' / 'tool-caller'}", "--model", f"bard={BARD_DIR}")
    with model_ring(*models, "--models-memory-gb", "1") as (_, ring):
        yield ring


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_client_sent_gives_what_it_reads(ring: ModelRing, name: str):
    ring.post("/api/generate", model="m")  # loads it
    for call in read_calls(name):
        check(ring.url, call)


def test_the_client_for_javascript(ring: ModelRing):
    node = shutil.which("node")
    if node is None or not (NPM / "node_modules" / "ollama").is_dir():
        pytest.skip("the client is not installed: npm install --prefix tests/ring/npm")
    done = subprocess.run(
        [node, str(NPM / "ollama.mjs"), ring.url], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def ollama() -> Any:
    return pytest.importorskip("ollama", reason="ollama is not installed")


@pytest.fixture
def client(ring: ModelRing, ollama: Any) -> Iterator[Any]:
    with ollama.Client(host=ring.url, timeout=TIMEOUT_S) as client:
        yield client


def test_lists_and_descriptions(client: Any):
    client.generate("m", keep_alive="5m")
    listed, other = client.list().models
    running = {model.model: model for model in client.ps().models}["m"]
    assert (listed.model, other.model) == ("m", "bard")
    assert listed.modified_at < running.expires_at
    assert running.size > listed.size > 0
    shown = client.show("m")
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.modelinfo["llama.context_length"] == running.context_length == 1024
    assert "message.role" in shown.template
    assert ".Tools" in shown.template


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_and_its_result(client: Any, stream: bool):
    """The tool is a Python function, whose description the client makes."""

    def get_weather(city: str) -> str:
        """Returns the weather.

        Args:
            city: Where.
        """
        return RESULTS["get_weather"]

    messages: list[Any] = [QUESTION]

    def ask() -> Any:
        reply = client.chat("m", messages, tools=[get_weather, TOOLS[1]], stream=stream, options=GREEDY)
        parts = list(reply) if stream else [reply]
        assert (parts[-1].done, parts[-1].done_reason) == (True, "stop")
        assert min(parts[-1].eval_count, parts[-1].eval_duration, parts[-1].prompt_eval_duration) > 0
        return parts

    (calls,) = [part.message.tool_calls for part in ask() if part.message.tool_calls]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("get_weather", {"city": "Oslo"})]
    messages += [{"role": "assistant", "tool_calls": calls}]
    messages += [{"role": "tool", "content": get_weather("Oslo"), "tool_name": "get_weather"}]
    assert "".join(part.message.content for part in ask()) == ANSWER


def test_prompts_formats_and_embeddings(client: Any):
    prompt = QUESTION["content"]
    whole = client.generate("m", prompt, think=False, options=GREEDY, keep_alive="5m")
    assert whole.response == NO_TOOL
    assert "".join(part.response for part in client.generate("m", prompt, stream=True, options=GREEDY)) == NO_TOOL
    raw = client.generate("m", f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", raw=True)
    assert raw.response == NO_TOOL
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    assert json.loads(client.chat("m", [QUESTION], format=schema).message.content) in ({"n": 1}, {"n": 2})
    logprobs = client.generate("m", prompt, logprobs=True, top_logprobs=2, options=GREEDY).logprobs
    assert "".join(entry.token for entry in logprobs).startswith(NO_TOOL)
    reply = client.embed("m", ["How far?", "To the moon"], truncate=True, dimensions=8)
    assert [len(vector) for vector in reply.embeddings] == [8, 8]
    assert len(client.embeddings("m", "How far?").embedding) == 64


def test_models_are_loaded_by_their_name_and_unloaded(client: Any):
    def running() -> set[str]:
        return {model.model for model in client.ps().models}

    for name in ("m", "bard"):
        assert client.generate(name, "Hi", raw=True, options={"num_predict": 3}).eval_count == 3
        assert name in running()
        assert client.generate(name, keep_alive=0).done_reason == "unload"
        wait_for(lambda name=name: name not in running())
    assert client.generate("bard:latest", keep_alive=300).done_reason == "load"
    assert running() == {"bard"}


def test_a_stream_that_its_reader_gives_up(ring: ModelRing, ollama: Any):
    async def leave() -> int:
        options = {"num_predict": 900, "ignore_eos": True}
        num_parts = 0
        async with ollama.AsyncClient(host=ring.url, timeout=TIMEOUT_S) as client:
            parts = await client.generate("m", "On", raw=True, stream=True, options=options)
            async for _ in parts:
                num_parts += 1
                break
            await parts.aclose()
        return num_parts

    assert asyncio.run(leave()) == 1
    ring.wait_until_empty()


def test_errors_are_the_clients(client: Any, ollama: Any):
    calls: list[tuple[int, str, Any]] = [
        (404, "not found", lambda: client.chat("none", [QUESTION])),
        (404, "not found", lambda: list(client.chat("none", [QUESTION], stream=True))),
        (400, "temperature", lambda: client.generate("m", "hi", options={"temperature": 9})),
        *(
            (501, "is not supported", call)
            for call in (
                lambda: client.pull("llama3"),
                lambda: list(client.pull("llama3", stream=True)),
                lambda: client.create("n", from_="m"),
                lambda: client.push("m"),
                lambda: client.copy("m", "n"),
                lambda: client.delete("m"),
            )
        ),
    ]
    for status, text, call in calls:
        with pytest.raises(ollama.ResponseError, match=text) as caught:
            call()
        assert caught.value.status_code == status
