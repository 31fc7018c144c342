"""Ollama's API in a frontend, with a ring played by the test; the bodies are those of the official Python client."""

import json
import time
from typing import Any

import pytest

from frontend.http.stream import LINE_PAUSE_S
from messages.columns import pack_float32
from messages.ring.replies import PooledReply, PrefilledRow, PromptReply, Usage
from messages.ring.requests import Stamps, TokenizeMsg, Truncation
from tests.frontend.frontend_run import Call, FrontendRun, final, position_logprobs, step

TEXT = (
    '<think>\nHm\n</think>\n\nWell.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)
USER = {"role": "user", "content": "hi"}
MAX_TRIES = 5
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
STAMPS = Stamps(received_ns=1000, first_scheduled_ns=2000, first_token_ns=5000, finished_ns=9000)


def send(run: FrontendRun, path: str = "/api/chat", **body: Any) -> tuple[Call, TokenizeMsg]:
    call = run.call({"model": "m", "prompt": None, **body}, {"Content-Type": "text/plain"}, path)
    return call, run.take_request()


def play(run: FrontendRun, message: TokenizeMsg, text: str = "Yes.", **end: Any) -> None:
    run.send(PromptReply(message.uid, 0, ""))
    prefilled = (PrefilledRow(message.uid, 0, Usage(20, 16)),)
    for start in range(0, len(text), 7):
        run.send(step([(message, 5, text[start : start + 7])], prefilled=prefilled))
        prefilled = ()
    run.send(final(message, "", (), **{"finish_reason": "stop", "usage": Usage(20, 16, 9), "stamps": STAMPS, **end}))


def lines_of(call: Call) -> list[dict[str, Any]]:
    assert call.response.getheader("content-type") == "application/x-ndjson"
    return [json.loads(line) for line in call.response.read().splitlines()]


def test_the_lines_of_a_stream_add_up_to_the_whole_answer(reader: FrontendRun):
    call, message = send(reader, messages=[USER], tools=[TOOL], options={"num_predict": 50, "seed": 7})
    with call:
        play(reader, message, TEXT)
        *pieces, last = lines_of(call)
    assert not any(line["done"] for line in pieces)
    parts = [line["message"] for line in pieces]
    called = {"index": 0, "name": "get_weather", "arguments": {"city": "Rom"}}
    assert "".join(part.get("thinking", "") for part in parts) == "Hm"
    assert "".join(part["content"] for part in parts).strip() == "Well."
    assert [call["function"] for part in parts for call in part.get("tool_calls", ())] == [called]
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert (last["prompt_eval_count"], last["eval_count"]) == (20, 9)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (3000, 4000)
    call, message = send(reader, messages=[USER], tools=[TOOL], stream=False)
    with call:
        play(reader, message, TEXT)
        whole = call.json()
    assert (whole["message"]["thinking"], whole["message"]["content"]) == ("Hm", "Well.")
    assert [call["function"] for call in whole["message"]["tool_calls"]] == [called]
    assert whole["done"]
    assert isinstance(whole["total_duration"], int)


@pytest.mark.parametrize(
    ("recorded", "load_ns"), [("2500000000", 2_500_000_000), ("-1", 0), ("1e9", 0), ("9" * 400, 10**15 - 1)]
)
def test_the_durations_include_the_load_that_the_request_has_waited_for(
    server: FrontendRun, recorded: str, load_ns: int
):
    call = server.call({"model": "m", "stream": False}, {"X-Model-Load-Ns": recorded}, "/api/generate")
    with call:
        play(server, server.take_request())
        reply = call.json()
    assert reply["load_duration"] == load_ns < reply["total_duration"]
    call = server.call({"model": "m", "prompt": None, "input": "one"}, {"X-Model-Load-Ns": recorded}, "/api/embed")
    message = server.take_request()
    with call:
        server.send(PooledReply(message.uid, 0, pack_float32([0.5]), 1))
        server.send(final(message, "", (), finish_reason="length", usage=Usage(3, 0, 0)))
        reply = call.json()
    assert reply["load_duration"] == load_ns < reply["total_duration"]


def test_options_become_sampling_parameters(server: FrontendRun):
    options = {"temperature": 0.5, "top_k": 3, "repeat_penalty": 1.1, "num_predict": 5, "num_ctx": 4096, "stop": ["x"]}
    call, message = send(server, "/api/generate", prompt="hi", options={**options, "num_gpu": 1, "mirostat": 0})
    with call:
        params = message.sampling_params
        assert (params.temperature, params.top_k, params.repetition_penalty) == (0.5, 3, 1.1)
        assert (params.max_tokens, params.stop) == (5, ("x",))
        play(server, message)
        *pieces, last = lines_of(call)
    assert ("".join(line["response"] for line in pieces), last["response"]) == ("Yes.", "")


@pytest.mark.parametrize("num_predict", [0, -1, -2, -5])
def test_below_1_there_is_no_limit_of_tokens(server: FrontendRun, num_predict: int):
    options = {"num_predict": num_predict}
    call, message = send(server, "/api/generate", prompt="hi", options=options, stream=False)
    with call:
        assert message.sampling_params.max_tokens == 512
        play(server, message, finish_reason="length")
        assert call.json()["done_reason"] == "length"


@pytest.mark.parametrize(("think", "kwargs"), [(True, {"thinking": True}), ("low", {"reasoning_effort": "low"})])
def test_think_reaches_the_chat_template(reader: FrontendRun, think: bool | str, kwargs: dict[str, Any]):
    call, message = send(reader, messages=[USER], think=think)
    with call:
        assert message.chat is not None
        provided = json.loads(message.chat.template_kwargs)
        assert kwargs.items() <= provided.items()
        play(reader, message)
        lines_of(call)


def test_a_raw_prompt_sees_no_template_and_a_format_is_a_grammar(server: FrontendRun):
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}}}
    call, message = send(server, "/api/generate", prompt="hi", raw=True, format=schema, stream=False)
    with call:
        grammar = message.sampling_params.grammar
        assert (message.prompt_text, message.chat) == ("hi", None)
        assert grammar is not None
        assert (json.loads(grammar.text), grammar.closes_objects) == (schema, None)
        play(server, message)
        assert call.json()["response"] == "Yes."


def test_results_of_tools_find_the_calls_that_have_no_ids(reader: FrontendRun):
    turns = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": n, "arguments": {}}} for n in "ab"]},
        *({"role": "tool", "content": name.upper(), "tool_name": name} for name in "ab"),
    ]
    call, message = send(reader, messages=turns)
    with call:
        assert message.chat is not None
        _, calling, *results = json.loads(message.chat.messages)
        assert [call["id"] for call in calling["tool_calls"]] == [result["tool_call_id"] for result in results]
        play(reader, message)
        lines_of(call)


def test_logprobs_are_in_the_line_of_their_tokens(server: FrontendRun):
    call, message = send(server, messages=[USER], logprobs=True, top_logprobs=1, stream=False)
    with call:
        assert message.sampling_params.num_logprobs == 1
        logprobs = {0: position_logprobs(5, "Yes.", -0.5, 0)}
        server.send(PromptReply(message.uid, 0, ""))
        server.send(step([(message, 5, "Yes.")], logprobs=logprobs))
        server.send(final(message, "", (), finish_reason="stop", usage=Usage(3, 0, 1)))
        assert [(entry["token"], entry["logprob"]) for entry in call.json()["logprobs"]] == [("Yes.", -0.5)]


def test_steps_that_share_a_line_keep_all_their_logprobs(server: FrontendRun):
    call, message = send(server, messages=[USER], logprobs=True)
    with call:
        server.send(PromptReply(message.uid, 0, ""))
        for text in "abc":
            server.send(step([(message, 5, text)], logprobs={0: position_logprobs(5, text, -0.5, 0)}))
        server.send(final(message, "", (), finish_reason="stop", usage=Usage(3, 0, 3), stamps=STAMPS))
        lines = lines_of(call)
    assert [entry["token"] for line in lines for entry in line.get("logprobs", ())] == ["a", "b", "c"]
    assert "".join(line["message"]["content"] for line in lines) == "abc"


def test_a_body_without_a_prompt_loads_or_unloads_nothing(server: FrontendRun):
    kept = [({"keep_alive": value}, "load") for value in (None, -1, 3.5, "5m", "-1", "1h30m", "1.5h", "90")]
    left = [({"keep_alive": value}, "unload") for value in (0, 0.0, "0", "0s", "0h0m", ".0")]
    for body, reason in (({}, "load"), *kept, *left):
        for path in ("/api/chat", "/api/generate"):
            reply = server.client.post(path, json={"model": "m:latest", **body}).json()
            assert (reply["done"], reply["done_reason"], reply["model"]) == (True, reason, "m:latest")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "other", "messages": [USER]}, 404, "model 'other' not found"),
        ({"model": "m", "name": "n", "messages": [USER]}, 400, "model and name mean the same"),
        ({"model": "m", "messages": [{**USER, "role": "banana"}]}, 400, "messages[0].role must be one of system, "),
        ({"model": "m", "messages": [{**USER, "role": ""}]}, 400, "messages must be a list"),
        *(
            ({"model": "m", "messages": messages, "keep_alive": value}, 400, "keep_alive must be a number of seconds")
            for value in ("long", "5 m", "", "1" * 60 + "x", "1" * 33, True, [], "5m3")
            for messages in ([], [USER])
        ),
        *(
            ({"model": "m", "messages": messages, "options": {"num_ctx": value}}, 400, "num_ctx must be a whole number")
            for value in ("4k", -1, 1.5, 2**63, True, 1e300)
            for messages in ([], [USER])
        ),
        ({"model": "m", "messages": [USER], "options": {"num_gpu": "all"}}, 400, "num_gpu must be a whole number"),
        ({"model": "m", "messages": [USER], "options": {"use_mmap": 3}}, 400, "use_mmap must be true or false"),
        ({"model": "m", "messages": [USER], "think": 1}, 400, "think must be true, false"),
        ({"model": "m", "messages": [USER], "think": {}}, 400, "think must be true, false"),
        ({"messages": [USER]}, 400, "model is required"),
        (
            {"model": "m", "messages": [{**USER, "images": ["aGk="]}]},
            400,
            "image input is not supported by this model",
        ),
        ({"model": "m", "messages": [USER], "options": {"temperature": 9}}, 400, "temperature must be a number in"),
        (
            {"model": "m", "messages": [USER], "options": {"num_predict": 1.5}},
            400,
            "num_predict must be a whole number",
        ),
        ({"model": "m", "messages": [USER], "options": {"num_predict": 2**31}}, 400, "num_predict must be a whole"),
        ({"model": "m", "messages": [USER], "format": "xml"}, 400, 'format must be "json" or a JSON schema'),
        ({"model": "m", "messages": [USER], "think": "much"}, 400, "think must be true, false"),
    ],
)
def test_errors_are_in_the_form_of_this_api(server: FrontendRun, body: dict[str, Any], status: int, text: str):
    refused = server.client.post("/api/chat", json=body)
    assert refused.status_code == status
    assert text in refused.json()["error"]


def test_embeddings(server: FrontendRun):
    call = server.call({"model": "m", "prompt": None, "input": ["one", "two"], "dimensions": 2}, {}, "/api/embed")
    messages = [server.take_request() for _ in range(2)]
    with call:
        for message, text in zip(messages, ("one", "two"), strict=True):
            params = message.sampling_params
            assert params.pooling is not None
            assert (message.prompt_text, params.pooling.kind, params.pooling.dimensions) == (text, "embed", 2)
            assert message.truncation == Truncation(512, "right")
            server.send(PooledReply(message.uid, 0, pack_float32([0.5, len(text)]), 1))
            server.send(final(message, "", (), finish_reason="length", usage=Usage(3, 0, 0)))
        reply = call.json()
    assert (reply["embeddings"], reply["prompt_eval_count"]) == ([[0.5, 3.0], [0.5, 3.0]], 6)
    refused = server.client.post("/api/embed", json={"model": "m", "input": ["a", ""]})
    assert (refused.status_code, refused.json()["error"]) == (400, "input[1] must not be empty")
    for nothing in ([], ""):
        assert server.client.post("/api/embed", json={"model": "m", "input": nothing}).json()["embeddings"] == []


def test_models_cannot_be_pulled_here(server: FrontendRun):
    for name, method in (
        ("pull", "POST"),
        ("create", "POST"),
        ("push", "POST"),
        ("copy", "POST"),
        ("delete", "DELETE"),
    ):
        refused = server.client.request(method, f"/api/{name}", json={"model": "llama3"})
        assert refused.status_code == 501
        assert "--model" in refused.json()["error"]


def test_its_clients_find_the_server_and_its_models(server: FrontendRun):
    assert server.client.get("/", headers={"User-Agent": "ollama-python/0.6"}).text == "Ollama is running"
    assert "html" in server.client.get("/").headers["content-type"]
    version = server.client.get("/api/version").json()["version"]
    assert [*map(int, version.split("."))] >= [0, 6, 4]


def test_the_model_is_echoed_as_it_is_requested(server: FrontendRun):
    for name in ("m", "m:latest"):
        call, message = send(server, "/api/generate", model=name, name=name, prompt="hi")
        with call:
            play(server, message)
            assert {line["model"] for line in lines_of(call)} == {name}
        reply = server.client.post("/api/embed", json={"model": name, "input": []})
        assert reply.json()["model"] == name


def test_whole_numbers_may_be_written_with_a_fraction_of_zero(server: FrontendRun):
    options = {"num_predict": 5.0, "top_k": 40.0, "seed": 7.0, "num_ctx": 4096.0, "temperature": 1.0, "num_gpu": None}
    call, message = send(server, "/api/generate", prompt="hi", options=options, stream=False)
    with call:
        params = message.sampling_params
        assert (params.max_tokens, params.top_k, params.seed, params.temperature) == (5, 40, 7, 1.0)
        play(server, message)
        assert call.json()["done"]


def read_chunks(server: FrontendRun) -> tuple[list[bytes], float]:
    """Returns the HTTP chunks of a chat, and the seconds between the first and the last one."""
    call, message = send(server, messages=[USER])
    with call:
        server.send(PromptReply(message.uid, 0, ""))
        server.send(step([(message, 5, "One")]))
        server.send(step([(message, 5, " two")]))
        server.send(final(message, " three", (5,), finish_reason="stop", usage=Usage(3, 0, 3), stamps=STAMPS))
        raw = call.response.fp
        assert raw is not None
        chunks: list[bytes] = []
        read_s: list[float] = []
        while size := int(raw.readline(), 16):
            read_s.append(time.monotonic())
            chunks.append(raw.read(size))
            raw.readline()
    return chunks, read_s[-1] - read_s[0]


def test_each_line_is_an_http_chunk(server: FrontendRun):
    """Some clients parse as one document what they read at once."""
    for _ in range(MAX_TRIES):  # a slow client finds them all
        chunks, seconds = read_chunks(server)
        if seconds >= (len(chunks) - 1) * LINE_PAUSE_S / 2:
            break
    else:
        raise AssertionError("they are not sent one by one")
    lines = [json.loads(chunk) for chunk in chunks]
    assert "".join(line["message"]["content"] for line in lines) == "One two three"
    assert [line["done"] for line in lines][-2:] == [False, True]


@pytest.mark.parametrize(
    ("truncate", "num_predict", "kept"),
    [(None, -1, 512 - 64), (True, 5, 512 - 5), (True, 100, 512 - 64), (False, -1, None)],
)
def test_a_prompt_that_is_too_long_loses_its_oldest_part(
    server: FrontendRun, truncate: bool | None, num_predict: int, kept: int | None
):
    expected = None if kept is None else Truncation(kept, "left", drops_messages=True)
    for path, fields in (
        ("/api/chat", {"messages": [USER]}),
        ("/api/generate", {"prompt": "hi"}),
        ("/api/generate", {"prompt": "hi", "raw": True}),
    ):
        body = {**fields, "truncate": truncate, "shift": False, "options": {"num_predict": num_predict}}
        call, message = send(server, path, stream=False, **body)
        with call:
            assert message.truncation == expected
            play(server, message)
            assert call.json()["done"]


def test_the_words_that_clients_look_for(server: FrontendRun):
    refused = server.client.post("/api/chat", json={"model": "m", "messages": [USER], "tools": [TOOL]})
    assert refused.status_code == 400
    assert "does not support tools" in refused.json()["error"]
    for path in ("chat", "generate", "embed", "embeddings", "show"):
        refused = server.client.post(f"/api/{path}", json={"model": "other:latest"})
        assert (refused.status_code, refused.json()) == (404, {"error": "model 'other' not found"})
