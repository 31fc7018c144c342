"""Tools and reasoning through the whole ring, with a scripted model.

What the clients of `openai` and `anthropic` make of them in each API, and streams whose processes are killed in the
middle of a call.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.ring.client import TIMEOUT_S, RingClient
from tests.scripted_model import END, build_scripted_model

if TYPE_CHECKING:  # every worker imports this file, and importing the client takes seconds
    from anthropic import Anthropic

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
RESPONSE_TOOLS: Any = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
MESSAGE_TOOLS: Any = [
    {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS
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
    """The sum of a stream's chunks."""

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
    """Returns the sum of a stream during whose first call process `kill` is killed."""
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


@pytest.mark.parametrize("process", ["scheduler", "detokenizer"])
def test_a_call_continues_when_a_process_dies_in_the_middle_of_it(ring: RingClient, process: str):
    expected = stream_raw(ring)
    assert [call["name"] for call in expected.calls] == ["get_weather", "now"]
    assert json.loads(expected.calls[0]["arguments"]) == WEATHER
    for _ in range(MAX_TRIES):
        before, num_restarts = ring.num_continued(), ring.status(process)["num_restarts"]
        assert vars(stream_raw(ring, kill=process)) == vars(expected)
        ring.wait_for_restart(process, num_restarts + 1)
        if ring.num_continued() > before:
            return
    raise AssertionError(f"the {process} never died in mid-stream")


def test_responses_and_their_events_are_what_the_client_thinks_they_are(client: OpenAI, ring: RingClient):
    """The client builds its objects without validation, so they are validated here."""
    with client.responses.stream(model="m", input=[QUESTION], tools=RESPONSE_TOOLS) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 50
    assert [item.type for item in streamed.output] == ["reasoning", "message", "function_call", "function_call"]
    assert streamed.output_text == "One moment, bitte schön."
    calls: Any = [item for item in streamed.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [WEATHER, {}]
    events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    request = {
        "input": [QUESTION],
        "tools": RESPONSE_TOOLS,
        "include": ["message.output_text.logprobs"],
        "stream": True,
    }
    with httpx.stream("POST", f"{ring.url}/v1/responses", json=request, timeout=TIMEOUT_S) as reply:
        seen = [events.validate_json(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]
    assert (seen[-1].type, seen[-1].response.output_text) == ("response.completed", streamed.output_text)


def test_a_response_is_continued_shown_and_made_in_the_background(client: OpenAI):
    first = client.responses.create(model="m", input=[QUESTION], tools=RESPONSE_TOOLS)
    calls: Any = [item for item in first.output if item.type == "function_call"]
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 °C"} for call in calls]
    second = client.responses.create(model="m", previous_response_id=first.id, input=results, tools=RESPONSE_TOOLS)
    assert second.output_text == "It is 21 °C and sunny."
    assert client.responses.retrieve(second.id).output_text == second.output_text
    listed = [item.type for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
    assert listed == ["message", *(item.type for item in first.output), "function_call_output", "function_call_output"]
    client.responses.delete(second.id)
    for gone in (second.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
    begun = list(client.responses.create(model="m", input="Hi", background=True, stream=True))
    response_id = begun[-1].response.id  # pyright: ignore[reportAttributeAccessIssue]
    again = list(client.responses.retrieve(response_id, stream=True, starting_after=len(begun) - 3))
    assert [event.sequence_number for event in again] == [len(begun) - 2, len(begun) - 1]
    slow = client.responses.create(model="m", input="Hi", background=True, tools=RESPONSE_TOOLS)
    assert client.responses.cancel(slow.id).status in ("cancelled", "completed")


@pytest.fixture
def messages_client(ring: RingClient) -> Iterator["Anthropic"]:
    from anthropic import Anthropic

    with Anthropic(base_url=ring.url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


ASKED: Any = {
    "model": "m",
    "max_tokens": 5000,
    "tools": MESSAGE_TOOLS,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


def test_a_round_trip_of_a_tool_in_messages(messages_client: "Anthropic"):
    from anthropic.types import Message

    whole = messages_client.messages.create(messages=[QUESTION], **ASKED)
    assert (whole.stop_reason, [block.type for block in whole.content]) == (
        "tool_use",
        ["thinking", "text", "tool_use", "tool_use"],
    )
    Message.model_validate(whole.model_dump())
    calls: Any = whole.content[2:]
    assert [call.input for call in calls] == [WEATHER, {}]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "21 °C"} for call in calls]
    history: Any = [QUESTION, {"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
    with messages_client.messages.stream(messages=history, **ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert (text, final.stop_reason) == ("It is 21 °C and sunny.", "end_turn")
    counted = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    count = messages_client.messages.count_tokens(messages=history, **counted)
    usage = final.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    plain = messages_client.messages.create(model="m", max_tokens=99, messages=[QUESTION])
    assert [block.model_dump(exclude_none=True) for block in plain.content] == [{"type": "text", "text": PLAIN}]


def test_errors_are_those_of_the_messages_client(messages_client: "Anthropic"):
    import anthropic

    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    content: Any = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[1\]: image input is not supported"):
        messages_client.messages.create(model="m", max_tokens=9, messages=[content])
    with pytest.raises(anthropic.NotFoundError) as raised:
        messages_client.messages.create(model="claude", max_tokens=9, messages=[QUESTION])
    assert raised.value.type == "not_found_error"


def test_a_message_continues_when_a_process_dies_in_the_middle_of_a_call(
    ring: RingClient, messages_client: "Anthropic"
):
    expected = messages_client.messages.create(messages=[QUESTION], **ASKED)
    for _ in range(MAX_TRIES):
        before, num_restarts = ring.num_continued(), ring.status("detokenizer")["num_restarts"]
        num_pieces = 0
        with messages_client.messages.stream(messages=[QUESTION], **ASKED) as stream:
            for event in stream:
                num_pieces += event.type == "input_json"
                if event.type == "input_json" and num_pieces == NUM_CHUNKS_BEFORE:
                    ring.kill("detokenizer")
            final = stream.get_final_message()
        ring.wait_for_restart("detokenizer", num_restarts + 1)
        assert (final.stop_reason, final.usage.output_tokens) == (expected.stop_reason, expected.usage.output_tokens)
        assert [shown(block) for block in final.content] == [shown(block) for block in expected.content]
        if ring.num_continued() > before:
            return
    raise AssertionError("the detokenizer never died in mid-stream")


def shown(block: Any) -> dict[str, Any]:
    """Returns a block without its id, which differs each time."""
    return block.model_dump(exclude={"id"})


CUT_IN_CALL = "Satz 3"
"""Is in the arguments of the first call."""


def test_a_call_that_is_cut_is_unfinished_in_every_api(client: OpenAI, messages_client: "Anthropic"):
    whole = client.chat.completions.create(model="m", messages=[QUESTION], tools=TOOLS, stop=CUT_IN_CALL).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("stop", "One moment, bitte schön.")
    calls: list[Any] = list(whole.message.tool_calls or ())
    (call,) = calls
    assert call.function.arguments.startswith('{"city": "Zürich 😀"')
    stream = client.chat.completions.create(model="m", messages=[QUESTION], tools=TOOLS, stop=CUT_IN_CALL, stream=True)
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices][-1] == "stop"
    response = client.responses.create(model="m", input="Hi", tools=RESPONSE_TOOLS, extra_body={"stop": CUT_IN_CALL})
    assert (response.status, {item.type for item in response.output}) == (
        "incomplete",
        {"reasoning", "message", "function_call"},
    )
    message = messages_client.messages.create(messages=[QUESTION], stop_sequences=[CUT_IN_CALL], **ASKED)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", CUT_IN_CALL)
    assert {block.type for block in message.content} == {"thinking", "text", "tool_use"}
    num_tokens = message.usage.output_tokens
    short = client.chat.completions.create(model="m", messages=[QUESTION], tools=TOOLS, max_tokens=num_tokens)
    assert short.choices[0].finish_reason == "length"
    assert len(short.choices[0].message.tool_calls or ()) == 1


def test_the_text_of_a_special_token_ends_an_answer(client: OpenAI):
    options: Any = {"ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
    for shown_too in ({}, {"skip_special_tokens": False}):
        choice = client.chat.completions.create(
            model="m", messages=[QUESTION], stop=END, max_tokens=50, extra_body={**options, **shown_too}
        ).choices[0]
        assert (choice.message.content, choice.finish_reason) == (PLAIN, "stop")


def test_the_tokens_of_a_prompt_are_counted_and_models_listed(client: OpenAI, messages_client: "Anthropic"):
    asked: Any = {"model": "m", "input": "Hi", "tools": RESPONSE_TOOLS, "instructions": "Be brief."}
    usage = client.responses.create(**asked).usage
    assert usage is not None
    assert client.responses.input_tokens.count(**asked).input_tokens == usage.input_tokens
    assert [model.display_name for model in messages_client.models.list()] == ["m"]
    assert [model.id for model in client.models.list()] == ["m"]
