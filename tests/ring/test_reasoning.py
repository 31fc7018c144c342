"""Reasoning with grammars, forced calls and budgets through the whole ring, with a scripted model."""

import json
from typing import Any

import httpx
import pytest

from tests.ring.client import TIMEOUT_S, RingClient
from tests.scripted_model import build_scripted_model

pytestmark = pytest.mark.ring

MAX_TRIES = 5
JSON = '{"ok":true}'
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
LONG = "".join(f"Point {n} is {n * n}, so that {n + 7} follows; " for n in range(60))
SCRIPTS = {
    "<think>\n": f"Is it? Yes.\n</think>\n\n{JSON}",
    "<think>\n\n": f"I need the time.\n</think>\n\n{CALL}",
    "<think>\n\n\n": f"{LONG}</think>\n\nDone.",
    "</think>\n\n": JSON,
    "self:": f"<think>\nLet me think.\n</think>\n\n{JSON}",
    "none:": "Plainly, I did not think at all before I said this.",
}
ENDS = {"json": "<think>\n", "call": "<think>\n\n", "long": "<think>\n\n\n", "self": "self:", "none": "none:"}
TEMPLATE = "{{ messages[-1].content }} {{ %s[messages[-1].content] }}" % json.dumps(ENDS)  # noqa: UP031 (braces)
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = {"json": SCHEMA, "disable_any_whitespace": True}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
MESSAGE_TOOLS = [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, start_ring: Any) -> RingClient:
    path = tmp_path_factory.mktemp("scripted")
    build_scripted_model(path, SCRIPTS, TEMPLATE)
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1")
    return start_ring(path, "--dtype", "float32", "--max-restarts-per-min", "100", *parsers)


def post(ring: RingClient, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx.post(f"{ring.url}{path}", json={"temperature": 0, **body}, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(ring: RingClient, content: str, **body: Any) -> dict[str, Any]:
    """Returns the choice."""
    return post(ring, "/v1/chat/completions", messages=[{"role": "user", "content": content}], **body)["choices"][0]


def stated(choice: dict[str, Any]) -> tuple[str | None, str | None, list[str]]:
    """Returns the reasoning, the content and the names of the calls."""
    message = choice["message"]
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message.get("reasoning"), message["content"], calls


@pytest.mark.parametrize(("content", "reasoning"), [("json", "Is it? Yes."), ("call", "I need the time.")])
def test_a_grammar_begins_when_the_thought_has_ended(ring: RingClient, content: str, reasoning: str):
    """The text that the model would write instead does not matter."""
    choice = chat(ring, content, structured_outputs=FORMAT, max_tokens=200)
    thought, answer, calls = stated(choice)
    assert (thought, calls, choice["finish_reason"]) == (reasoning, [], "stop")
    assert json.loads(answer or "").keys() == {"ok"}


def test_a_grammar_begins_at_once_where_the_prompt_has_closed_the_thought(ring: RingClient):
    choice = chat(ring, "json", structured_outputs=FORMAT, reasoning_effort="none")
    thought, answer, calls = stated(choice)
    assert (thought, calls, choice["finish_reason"]) == (None, [], "stop")
    assert json.loads(answer or "").keys() == {"ok"}


def test_an_answer_with_tools_is_a_call_or_what_it_must_be(ring: RingClient):
    asked: Any = {"structured_outputs": FORMAT, "tools": TOOLS, "max_tokens": 300}
    assert stated(chat(ring, "call", **asked)) == ("I need the time.", None, ["now"])
    thought, answer, calls = stated(chat(ring, "json", **asked))
    assert (thought, json.loads(answer or "").keys(), calls) == ("Is it? Yes.", {"ok"}, [])


@pytest.mark.parametrize("content", ["json", "self", "call"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_call_is_forced_after_the_thought(ring: RingClient, content: str, choice: Any):
    thought, answer, calls = stated(chat(ring, content, tools=TOOLS, tool_choice=choice, structured_outputs=FORMAT))
    assert (bool(thought), answer, calls) == (True, None, ["now"])
    kind = "any" if choice == "required" else "tool"
    message = post(
        ring,
        "/v1/messages",
        model=None,
        max_tokens=300,
        messages=[{"role": "user", "content": content}],
        tools=MESSAGE_TOOLS,
        tool_choice={"type": kind, **({"name": "now"} if kind == "tool" else {})},
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]
    text = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    chosen = choice if choice == "required" else {"type": "function", "name": "now"}
    response = post(ring, "/v1/responses", input=content, tools=tools, tool_choice=chosen, text=text)
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]


def test_no_effort_closes_a_thought_that_the_template_opens(ring: RingClient):
    assert stated(chat(ring, "long", reasoning_effort="none", max_tokens=60))[:2] == (None, JSON)
    response = post(ring, "/v1/responses", input="long", reasoning={"effort": "none"}, max_output_tokens=60)
    assert [item["type"] for item in response["output"]] == ["message"]
    off = {"thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "long"}], "max_tokens": 60}
    assert [block["type"] for block in post(ring, "/v1/messages", **off)["content"]] == ["text"]


@pytest.mark.parametrize("budget", [0, 1, 30])
def test_a_thought_is_closed_at_its_budget(ring: RingClient, budget: int):
    free = chat(ring, "long", return_token_ids=True, max_tokens=200)["token_ids"]
    held = chat(ring, "long", return_token_ids=True, max_tokens=200, thinking_token_budget=budget)
    ids = held["token_ids"]
    assert ids[:budget] == free[:budget]
    assert ids[budget] != free[budget]
    thought = stated(held)[0] or ""
    assert LONG.startswith(thought)
    assert (len(thought) > 0) == (budget > 0)
    both = chat(ring, "long", max_tokens=400, thinking_token_budget=budget, structured_outputs=FORMAT)
    assert both["finish_reason"] == "stop"
    assert (stated(both)[0] or "", json.loads(stated(both)[1] or "").keys()) == (thought, {"ok"})


def test_a_budget_changes_nothing_where_it_is_not_reached(ring: RingClient):
    for content, max_tokens in (("long", 3000), ("none", 100), ("self", 100)):
        free = chat(ring, content, return_token_ids=True, max_tokens=max_tokens)
        held = chat(ring, content, return_token_ids=True, max_tokens=max_tokens, thinking_token_budget=2500)
        assert held == free


def stream(ring: RingClient, kill: int | None = None, **body: Any) -> str:
    """Returns the reasoning and the content of a stream whose scheduler dies at the chunk with this number."""
    request = {"temperature": 0, "messages": [{"role": "user", "content": "long"}], "stream": True, **body}
    shown, num_chunks = "", 0
    with httpx.stream("POST", f"{ring.url}/v1/chat/completions", json=request, timeout=TIMEOUT_S) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk
                for choice in chunk["choices"]:
                    delta = choice["delta"]
                    shown += f"[{delta['reasoning']}]" if delta.get("reasoning") else delta.get("content") or ""
                num_chunks += 1
                if num_chunks == kill:
                    ring.kill("scheduler")
    return shown.replace("][", "")


@pytest.mark.parametrize("others", [{}, {"structured_outputs": FORMAT}])
def test_the_budget_is_the_same_when_the_scheduler_dies_in_the_thought(ring: RingClient, others: dict[str, Any]):
    asked = {"thinking_token_budget": 400, "max_tokens": 700, **others}
    expected = stream(ring, **asked)
    assert LONG.startswith(expected[1 : expected.index("]")])
    for _ in range(MAX_TRIES):
        before, num_restarts = ring.num_continued(), ring.status("scheduler")["num_restarts"]
        assert stream(ring, kill=40, **asked) == expected
        ring.wait_for_restart("scheduler", num_restarts + 1)
        if ring.num_continued() > before:
            return
    raise AssertionError("the scheduler never died in mid-stream")
