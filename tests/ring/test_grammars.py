"""Grammars on a real server: the output satisfies them, even if a process dies in the middle."""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from tests.ring.client import BARD, BARD_DIR, TIMEOUT_S, Generated, RingClient, body

pytestmark = pytest.mark.ring

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "titles": {"type": "array", "items": {"enum": ["king", "duke", "fool"]}, "minItems": 2, "maxItems": 4},
        "weapon": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{3,8}$"}]},
    },
    "required": ["name", "age", "titles", "weapon"],
    "additionalProperties": False,
}
COMPACT = {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}
LONG = {
    "structured_outputs": {
        "json": {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3},
        "disable_any_whitespace": True,
    }
}
MAX_TRIES = 5


TOOLS: Any = [
    {"type": "function", "function": {"name": "meet", "parameters": PERSON}},
    {
        "type": "function",
        "function": {"name": "exit", "parameters": {"type": "object", "additionalProperties": False}},
    },
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


class Verse(BaseModel):
    speaker: str = Field(max_length=20)
    lines: list[Annotated[str, Field(max_length=40)]] = Field(min_length=1, max_length=3)
    is_prose: bool


@pytest.fixture(scope="module")
def ring(bard_ring: RingClient) -> RingClient:
    return bard_ring


@pytest.fixture(scope="module")
def openai_client(ring: RingClient) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="module")
def no_white_space() -> dict[str, int]:
    """Biases that ban tokens of nothing but white space, of which so small a model may write any amount."""
    tokenizer = Tokenizer.from_file(str(BARD_DIR / "tokenizer.json"))
    texts = {token_id: tokenizer.decode([token_id]) for token_id in tokenizer.get_vocab().values()}
    return {str(token_id): -100 for token_id, text in texts.items() if text and not text.strip()}


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 1.3, "top_p": 0.95, "seed": 6}]
)
def test_json_validates(ring: RingClient, params: dict[str, Any]) -> None:
    got = ring.generate("ROMEO:", max_tokens=400, **COMPACT, **params)
    assert got.finish_reason == "stop"
    jsonschema.validate(json.loads(got.text), PERSON)


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        ({"guided_choice": ["to be", "not to be"]}, lambda text: text in ("to be", "not to be")),
        ({"guided_regex": "[0-9]{3}-[a-f]{4}"}, lambda text: len(text) == 8 and text[3] == "-"),
        ({"guided_grammar": 'start: "a" "b"* "c"'}, lambda text: text == "a" + "b" * (len(text) - 2) + "c"),
        ({"guided_grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
        ({"guided_json": '{"type": "integer", "minimum": 10, "maximum": 99}'}, lambda text: 10 <= int(text) <= 99),
        ({"structured_outputs": {"choice": ["ä", "日本"]}}, lambda text: text in ("ä", "日本")),
        ({"guided_regex": "a*", "ignore_eos": True, "max_tokens": 5}, lambda text: set(text) == {"a"}),
    ],
)
def test_every_form(ring: RingClient, fields: dict[str, Any], is_right: Callable[[str], bool]) -> None:
    got = ring.generate("ROMEO:", **{"max_tokens": 60, "temperature": 1.0, "seed": 3, **fields})
    assert is_right(got.text), got.text
    assert got.finish_reason == ("length" if "ignore_eos" in fields else "stop")


OK = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.5, "seed": 2}])
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_model_that_likes_white_space_ends_its_json(ring: RingClient, params: dict[str, Any], path: str) -> None:
    request = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "ok", "schema": OK}},
        "max_tokens": 150,
        **({"prompt": "ROMEO:"} if path == "completions" else {"messages": [{"role": "user", "content": "Is it ok?"}]}),
        **params,
    }
    (choice,) = httpx.post(f"{ring.url}/v1/{path}", json=request, timeout=TIMEOUT_S).json()["choices"]
    assert choice["finish_reason"] == "stop"
    text = choice["text"] if path == "completions" else choice["message"]["content"]
    jsonschema.validate(json.loads(text), OK)


def test_a_structural_tag_constrains_what_its_trigger_begins(ring: RingClient) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "ROMEO=", "schema": {"enum": [7]}, "end": ";"}],
        "triggers": ["ROMEO="],
    }
    prompt = "ROMEO=7;\n" * 6
    got = ring.generate(prompt, max_tokens=40, response_format=tag)
    assert "ROMEO=" not in got.text or all(part.startswith("7;") for part in got.text.split("ROMEO=")[1:-1])


def test_openai_parses_into_a_pydantic_model(openai_client: OpenAI, no_white_space: dict[str, int]) -> None:
    reply = openai_client.chat.completions.parse(
        model=BARD,
        messages=[{"role": "user", "content": "Speak"}],
        response_format=Verse,
        max_tokens=400,
        seed=2,
        logit_bias=no_white_space,
    )
    verse = reply.choices[0].message.parsed
    assert verse is not None
    assert 1 <= len(verse.lines) <= 3
    assert reply.choices[0].finish_reason == "stop"


def test_a_stream_of_openai_parses(openai_client: OpenAI, no_white_space: dict[str, int]) -> None:
    with openai_client.chat.completions.stream(
        model=BARD,
        messages=[{"role": "user", "content": "Speak"}],
        response_format=Verse,
        max_tokens=400,
        seed=3,
        logit_bias=no_white_space,
    ) as stream:
        verse = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(verse, Verse)


def test_choices_have_a_grammar_each_and_logprobs_of_the_model_itself(ring: RingClient) -> None:
    request = {
        "prompt": "JULIET:",
        "n": 4,
        "temperature": 1.0,
        "seed": 11,
        "max_tokens": 300,
        "logprobs": 1,
        "return_token_ids": True,
        "presence_penalty": 0.5,
        **COMPACT,
    }
    reply = httpx.post(f"{ring.url}/v1/completions", json=request, timeout=TIMEOUT_S).json()
    assert len({choice["text"] for choice in reply["choices"]}) == 4
    for choice in reply["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), PERSON)
    first = reply["choices"][0]
    ids = first["prompt_token_ids"] + first["token_ids"]
    again = {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 0, "stream": False}
    of_prompt = httpx.post(f"{ring.url}/generate", json=again, timeout=TIMEOUT_S).json()["prompt_logprobs"]
    expected = [entry[str(token_id)]["logprob"] for entry, token_id in zip(of_prompt[1:], ids[1:], strict=True)][
        -len(first["token_ids"]) :
    ]
    assert first["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=2e-3)


def test_a_stop_string_and_min_tokens_hold_next_to_a_grammar(ring: RingClient) -> None:
    stopped = ring.generate("ROMEO:", max_tokens=400, stop='"age"', **COMPACT)
    assert stopped.finish_reason == "stop"
    assert '"age"' not in stopped.text
    long = ring.generate("ROMEO:", max_tokens=40, min_tokens=20, guided_regex="[ab]+", temperature=1.0, seed=4)
    assert len(long.token_ids) >= 20


def test_bans_that_leave_nothing_end_the_request_alone(ring: RingClient) -> None:
    tokenizer = Tokenizer.from_file(str(BARD_DIR / "tokenizer.json"))
    banned = {str(tokenizer.token_to_id(name)): -100 for name in ("a", "b")}
    allowed = [tokenizer.token_to_id("c")]
    request = body("ROMEO:", stream=False, guided_regex="[ab]", allowed_token_ids=allowed, logit_bias=banned)
    reply = httpx.post(f"{ring.url}/generate", json=request, timeout=TIMEOUT_S)
    assert reply.status_code == 400
    assert "none of the tokens that the grammar allows" in reply.json()["error"]["message"]
    assert ring.generate("ROMEO:", max_tokens=3).finish_reason == "length"


LONG_REQUESTS = [
    body("ROMEO:", max_tokens=900, temperature=temperature, seed=seed, **LONG)
    for temperature, seed in ((0.0, 0), (1.0, 1))
]


@pytest.fixture(scope="module")
def expected(ring: RingClient) -> list[Generated]:
    return [ring.generate_all([request])[0] for request in LONG_REQUESTS]


@pytest.mark.parametrize("process", ["scheduler", "tokenizer", "detokenizer"])
def test_json_continues_exactly_where_a_process_dies(ring: RingClient, expected: list[Generated], process: str) -> None:
    for _ in range(MAX_TRIES):  # a slow client sees the tokens only at the end
        num_restarts = ring.status(process)["num_restarts"] + 1
        got = ring.generate_disturbed(LONG_REQUESTS, lambda: ring.kill(process))
        ring.wait_for_restart(process, num_restarts)
        assert [output.token_ids for output in got] == [output.token_ids for output in expected]
        assert [output.text for output in got] == [output.text for output in expected]
        if process == "tokenizer" or any(output.attempts > 1 for output in got):
            break
    else:
        raise AssertionError(f"the {process} never died in mid-stream")
    for output in got:
        check_long(output)


def check_long(output: Generated) -> None:
    assert output.finish_reason == "stop"
    people = json.loads(output.text)
    assert len(people) == 3
    for person in people:
        jsonschema.validate(person, PERSON)


def test_bad_grammars_do_not_end_the_streams_next_to_them(ring: RingClient) -> None:
    nasty = [
        {"guided_json": {"$ref": "#"}},
        {"guided_json": {"$ref": "#/$defs/d0", "$defs": chain_of_references(1_500)}},
        {"guided_regex": "(((a{1,100}){1,100}){1,100}){1,100}b"},
        {"guided_grammar": "start: " + " ".join(["(a|b)?"] * 3_000) + '\na: "a"\nb: "b"'},
        {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3_000)}}},
    ]
    expected = ring.generate("JULIET:", max_tokens=60, ignore_eos=True)
    statuses: list[int] = []

    def send_next(num_new: int) -> None:
        if nasty:
            request = body("x", stream=False, max_tokens=3, **nasty.pop())
            statuses.append(httpx.post(f"{ring.url}/generate", json=request, timeout=TIMEOUT_S).status_code)

    (got,) = ring.generate_all([body("JULIET:", max_tokens=60, ignore_eos=True)], send_next)
    assert got.token_ids == expected.token_ids
    assert set(statuses) <= {200, 400}
    assert len(statuses) == 5
    assert {process["num_restarts"] for name, process in ring.health()["processes"].items() if name == "frontend"} == {
        0
    }


def chain_of_references(length: int) -> dict[str, Any]:
    links: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {**links, f"d{length}": {"type": "string", "maxLength": 3}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "meet"}}])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_of_a_tool_is_forced(openai_client: OpenAI, choice: Any, is_streamed: bool) -> None:
    asked: Any = {
        "model": BARD,
        "messages": [{"role": "user", "content": "Enter a king."}],
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 600,
        "temperature": 1.0,
        "seed": 11,
    }
    if is_streamed:
        with openai_client.chat.completions.stream(**asked) as stream:
            (answer,) = stream.get_final_completion().choices
    else:
        (answer,) = openai_client.chat.completions.create(**asked).choices
    calls: Any = answer.message.tool_calls
    (call,) = calls
    assert (answer.finish_reason, answer.message.content or "") == ("tool_calls", "")
    assert choice == "required" or call.function.name == "meet"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
