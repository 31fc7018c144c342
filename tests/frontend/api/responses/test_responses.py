"""`/v1/responses`: the prompt, the reply and the store, with a ring played by the test."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from frontend.api.answers.turns import UNREAD
from frontend.api.responses.items import pack_reasoning
from frontend.api.responses.store import ResponseStore
from messages.config.server import HttpConfig, RunConfig
from messages.errors import ErrorInfo
from messages.ring.peers import UsedResponse, UseResponse
from messages.ring.replies import PromptReply, Usage
from messages.ring.requests import TokenizeMsg, Truncation
from tests.frontend.api.sse_events import named_events, next_event
from tests.frontend.frontend_run import (
    Call,
    FrontendRun,
    final,
    make_config,
    position_logprobs,
    step,
    wait_until,
)
from tests.frontend.other_frontend import OtherFrontend

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
TEXT = (
    '<think>\nHm\n</think>\n\nWell.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)

CODEX = {
    "model": "m",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": pack_reasoning("I use ls.")},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.py"}'},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "runs", "strict": False, "parameters": {"type": "object"}},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0198f2d7-8f5e-7f02-b3a5-1f0a3a4e6d2b",
    "text": {"verbosity": "medium"},
    "client_metadata": {"x": "y"},
}
"""As Codex CLI sends its second request of a turn."""


def send(run: FrontendRun, **body: Any) -> tuple[Call, TokenizeMsg]:
    call = run.call({"input": "hi", "prompt": None, **body}, path=PATH)
    return call, run.take_request()


def play(run: FrontendRun, message: TokenizeMsg, text: str = TEXT, **end: Any) -> None:
    """Answers with `text`, in steps of some characters."""
    run.send(PromptReply(message.uid, 0, ""))
    for start in range(0, len(text), 7):
        run.send(step([(message, 5, text[start : start + 7])]))
    run.send(final(message, "", (6,), **{"finish_reason": "stop", "usage": Usage(20, 16, 9), **end}))


def ask(run: FrontendRun, text: str = "Yes.", **body: Any) -> dict[str, Any]:
    call, message = send(run, **body)
    with call:
        play(run, message, text)
        return call.json()


def messages_of(message: TokenizeMsg) -> list[dict[str, Any]]:
    assert message.chat is not None
    return json.loads(message.chat.messages)


def shown(response: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns the items of a response without what differs from one to the next."""
    return [
        (item["type"], item["status"], item.get("name"), item.get("arguments"), item.get("content"))
        for item in response["output"]
    ]


def part(kind: str, text: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": text, **({"annotations": [], "logprobs": []} if kind == "output_text" else {})}]


OUTPUT = [
    ("reasoning", "completed", None, None, part("reasoning_text", "Hm")),
    ("message", "completed", None, None, part("output_text", "Well.")),
    ("function_call", "completed", "get_weather", '{"city": "Rom"}', None),
]


def test_a_whole_response(reader: FrontendRun):
    response = ask(reader, TEXT, tools=[TOOL], metadata={"a": "b"}, user="me", max_output_tokens=99)
    assert (response["object"], response["status"], response["error"]) == ("response", "completed", None)
    assert (response["metadata"], response["user"], response["tools"][0]["name"]) == ({"a": "b"}, "me", "get_weather")
    assert shown(response) == OUTPUT
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 9, 29)
    assert usage["input_tokens_details"]["cached_tokens"] == 16
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < 9


def test_a_stream_reports_of_each_item_in_order_and_ends_with_what_the_whole_response_would_be(reader: FrontendRun):
    call, message = send(reader, stream=True, tools=[TOOL])
    with call:
        play(reader, message)
        events = named_events(call)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    runs = [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before]
    of_text = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done"]
    assert runs == [
        *("created", "in_progress"),
        *(kind.format("reasoning_text") for kind in (*of_text, "output_item.done")),
        *(kind.format("output_text") for kind in (*of_text, "output_item.done")),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert shown(events[-1]["response"]) == OUTPUT
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == events[-1]["response"][
        "output"
    ]
    for event in events:
        if event["type"].endswith("content_part.added"):
            assert event["part"]["text"] == ""
        if event["type"].endswith(("text.done", "arguments.done")):
            deltas = [each["delta"] for each in events if each.get("item_id") == event["item_id"] and "delta" in each]
            assert "".join(deltas) == event.get("text", event.get("arguments"))


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_is_cut_is_incomplete(reader: FrontendRun, stream: bool):
    call, message = send(reader, stream=stream)
    with call:
        play(reader, message, "Yes, bu", finish_reason="length")
        response = named_events(call)[-1]["response"] if stream else call.json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert shown(response) == [("message", "incomplete", None, None, part("output_text", "Yes, bu"))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("end", "reason"),
    [({"finish_reason": "length"}, "max_output_tokens"), ({"stop_reason": "x"}, "stop_sequence")],
)
def test_a_call_that_is_cut_is_incomplete(reader: FrontendRun, stream: bool, end: dict[str, Any], reason: str):
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro'
    call, message = send(reader, stream=stream, tools=[TOOL], stop=["x"])
    with call:
        play(reader, message, text, **end)
        response = named_events(call)[-1]["response"] if stream else call.json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert shown(response) == [("function_call", "incomplete", "get_weather", '{"city": "Ro', None)]


def test_a_malformed_call_is_content_and_in_a_stream_incomplete(reader: FrontendRun):
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": oops}}</tool_call>'
    assert shown(ask(reader, text, tools=[TOOL])) == [("message", "completed", None, None, part("output_text", text))]
    call, message = send(reader, stream=True, tools=[TOOL])
    with call:
        play(reader, message, f"{text}\nSo.")
        response = named_events(call)[-1]["response"]
    assert [item["status"] for item in response["output"]] == ["incomplete", "completed"]


def test_an_error_in_a_stream_is_its_last_event(reader: FrontendRun):
    call, message = send(reader, stream=True)
    with call:
        reader.send(step([(message, 5, "Yes")]))
        assert next_event(call)["type"] == "response.created"
        reader.send(final(message, finish_reason="error", error=ErrorInfo(500, "out of luck")))
        last = named_events(call)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "out of luck"}


def test_what_codex_sends_is_a_chat_and_its_reasoning_comes_back(reader: FrontendRun):
    call, message = send(reader, **CODEX)
    with call:
        assert [(each["role"], each.get("content")) for each in messages_of(message)] == [
            ("system", "You are a coding agent.\n\n<permissions>"),
            ("user", "<environment_context>\n\nList the files."),
            ("assistant", "I look."),
            ("tool", '{"output":"a.py"}'),
        ]
        assistant = messages_of(message)[2]
        assert assistant["reasoning_content"] == "I use ls."
        assert assistant["tool_calls"][0]["function"] == {"name": "shell", "arguments": {"command": ["ls"]}}
        assert message.chat is not None
        kwargs = json.loads(message.chat.template_kwargs)
        assert (kwargs["reasoning_effort"], [tool["function"]["name"] for tool in kwargs["tools"]]) == (
            "medium",
            ["shell"],
        )
        play(reader, message)
        response = named_events(call)[-1]["response"]
    assert response["store"] is False
    assert response["output"][0]["encrypted_content"] == pack_reasoning("Hm")
    assert reader.client.get(f"{PATH}/{response['id']}").status_code == 404


@pytest.mark.parametrize(
    ("text", "kind", "grammar"),
    [
        ({"format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"type": "string"}, "strict": True}},
            "json_schema",
            '{"type": "string"}',
        ),
    ],
)
def test_the_format_of_the_text_is_a_grammar(reader: FrontendRun, text: Any, kind: str, grammar: str):
    call, message = send(reader, text=text)
    with call:
        expected = message.sampling_params.grammar
        assert expected is not None
        assert (expected.kind, expected.text, expected.param) == (kind, grammar, "text.format")
        play(reader, message, '"a"')
        assert call.json()["text"]["format"]["type"] == text["format"]["type"]


def test_a_truncated_response_keeps_the_end_of_its_input(server: FrontendRun):
    for body, kept in (({"truncation": "auto"}, Truncation(-1, "left")), ({"truncation": "disabled"}, None)):
        call, message = send(server, **body)
        with call:
            assert message.truncation == kept
            server.send(final(message, "Yes"))
            assert call.json()["truncation"] == body["truncation"]


def test_logprobs_are_those_of_the_text(server: FrontendRun):
    call, message = send(server, include=["message.output_text.logprobs"], top_logprobs=1, stream=True)
    with call:
        assert message.sampling_params.num_logprobs == 1
        one, two = position_logprobs(11, "a", -0.5, 0, (12, "b", -1.0)), position_logprobs(12, "b", -0.25, 1)
        server.send(step([(message, 11, "a")], logprobs={0: one}))
        server.send(final(message, "b", (12,), finish_reason="stop", logprobs=(two,)))
        events = named_events(call)
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in delta] for delta in deltas] == [["a"], ["b"]]
    whole = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert whole == [*deltas[0], *deltas[1]]
    assert whole[0]["top_logprobs"][0]["token"] == "b"


def test_a_response_continues_from_a_stored_one_and_can_be_shown_listed_and_deleted(reader: FrontendRun):
    first = ask(reader, TEXT, input="How is it?", tools=[TOOL], instructions="Be brief.")
    call_id = first["output"][2]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "21"}
    call, message = send(reader, previous_response_id=first["id"], input=[result], tools=[TOOL])
    with call:
        roles = [each["role"] for each in messages_of(message)]
        assert roles == ["user", "assistant", "tool"]  # instructions do not carry over
        assistant = messages_of(message)[1]
        assert (assistant["content"], assistant["reasoning_content"]) == ("Well.", "Hm")
        play(reader, message, "21 degrees.")
        second = call.json()
    url = f"{PATH}/{second['id']}"
    assert reader.client.get(url).json() == second
    listed = reader.client.get(f"{url}/input_items", params={"order": "asc", "limit": 2}).json()
    assert ([item["type"] for item in listed["data"]], listed["has_more"]) == (["message", "reasoning"], True)
    rest = reader.client.get(f"{url}/input_items", params={"order": "asc", "after": listed["last_id"]}).json()
    assert [item["type"] for item in rest["data"]] == ["message", "function_call", "function_call_output"]
    assert reader.client.delete(url).json() == {"id": second["id"], "object": "response", "deleted": True}
    assert reader.client.get(url).status_code == reader.client.delete(url).status_code == 404
    gone = reader.client.post(PATH, json={"input": "x", "previous_response_id": second["id"]})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "previous_response_not_found")


def test_items_are_named_by_their_ids(reader: FrontendRun):
    first = ask(reader, TEXT, tools=[TOOL])
    thought, text, call_item = ({"type": "item_reference", "id": item["id"]} for item in first["output"])
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "21"}
    items = [{"role": "user", "content": "hi"}, thought, {"id": text["id"]}, call_item, result]
    call, message = send(reader, input=items, tools=[TOOL])
    with call:
        _, assistant, tool = messages_of(message)
        assert (assistant["content"], assistant["reasoning_content"], tool["content"]) == ("Well.", "Hm", "21")
        assert assistant["tool_calls"][0]["function"]["name"] == "get_weather"
        play(reader, message, "21 degrees.")
        second = call.json()
    reader.client.delete(f"{PATH}/{first['id']}")
    listed = reader.client.get(f"{PATH}/{second['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert [item["type"] for item in listed] == [
        *("message", "reasoning", "message", "function_call", "function_call_output")
    ]
    for item_id in (call_item["id"], "msg_1"):
        gone = reader.client.post(PATH, json={"input": [items[0], {"type": "item_reference", "id": item_id}]})
        error = gone.json()["error"]
        assert (gone.status_code, error["param"], error["code"]) == (400, "input", "item_not_found")
        assert f"input[1]: no stored response that has ended contains '{item_id}'" in error["message"]


def test_the_model_is_notified_of_allowed_tools_alone(reader: FrontendRun):
    names = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    call, message = send(reader, tools=[TOOL, {**TOOL, "name": "now"}], tool_choice=names)
    with call:
        assert message.chat is not None
        (reported,) = json.loads(message.chat.template_kwargs)["tools"]
        assert reported["function"]["name"] == "now"
        play(reader, message, "Noon.")
        assert call.json()["tool_choice"] == names


def test_one_in_the_background_continues_without_its_client(reader: FrontendRun):
    call, message = send(reader, background=True)
    with call:
        begun = call.json()
    assert (begun["status"], begun["output"]) == ("in_progress", [])
    url = f"{PATH}/{begun['id']}"
    assert reader.client.get(url).json()["status"] == "in_progress"
    unready = reader.client.post(PATH, json={"input": "x", "previous_response_id": begun["id"]})
    assert unready.json()["error"]["code"] == "response_in_progress"
    play(reader, message)
    wait_until(lambda: reader.client.get(url).json()["status"] == "completed")
    assert [item["type"] for item in reader.client.get(url).json()["output"]] == ["reasoning", "message"]
    assert reader.client.get(url, params={"stream": "true"}).status_code == 400


def test_a_stream_in_the_background_is_followed_again_from_any_event(reader: FrontendRun):
    call, message = send(reader, background=True, stream=True)
    with call:
        begun = [next_event(call), next_event(call)]
    path = f"{PATH}/{begun[0]['response']['id']}?stream=true"
    with (
        reader.call(path=path, method="GET") as early,
        reader.call(path=f"{path}&starting_after=1", method="GET") as late,
    ):
        reader.send(step([(message, 5, "Yes")]))
        assert next_event(early)["type"] == "response.created"
        assert next_event(late)["sequence_number"] == 2
        play(reader, message, ", it is.")
        whole, rest = named_events(early), named_events(late)
    assert [event["sequence_number"] for event in rest] == list(range(3, 3 + len(rest)))
    assert whole[-len(rest) :] == rest
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "Yes, it is."
    with reader.call(path=f"{path}&starting_after=9999", method="GET") as over:
        assert named_events(over) == []


@pytest.mark.parametrize("is_deleted", [False, True])
def test_one_in_the_background_can_be_cancelled(reader: FrontendRun, is_deleted: bool):
    call, message = send(reader, background=True)
    with call:
        url = f"{PATH}/{call.json()['id']}"
    if is_deleted:
        assert reader.client.delete(url).status_code == 200
    else:
        assert reader.client.post(f"{url}/cancel", json={}).json()["status"] == "cancelled"
        assert reader.client.get(url).json()["status"] == "cancelled"
    assert reader.take_abort().uid == message.uid
    reader.send(final(message, finish_reason="abort"))
    wait_until(lambda: reader.gauge("requests") == 0)
    again = reader.client.post(f"{url}/cancel", json={})
    assert again.status_code == 404 if is_deleted else again.json()["status"] == "cancelled"


def test_one_in_the_background_whose_prompt_is_refused_has_failed(reader: FrontendRun):
    call, message = send(reader, background=True)
    with call:
        url = f"{PATH}/{call.json()['id']}"
    reader.send(final(message, finish_reason="error", error=ErrorInfo(400, "too long", param="messages")))
    wait_until(lambda: reader.client.get(url).json()["status"] == "failed")
    assert reader.client.get(url).json()["error"] == {"code": "invalid_prompt", "message": "too long"}
    foreground, message = send(reader)
    with foreground:
        reader.send(final(message, finish_reason="error", error=ErrorInfo(400, "too long", param="messages")))
        assert (foreground.response.status, foreground.json()["error"]["param"]) == (400, "input")


def test_only_one_in_the_background_can_be_cancelled(reader: FrontendRun):
    refused = reader.client.post(f"{PATH}/{ask(reader)['id']}/cancel", json={})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_ids_cannot_be_guessed_or_chosen(reader: FrontendRun):
    first, second = (ask(reader, request_id="mine")["id"] for _ in range(2))
    for name in (first, second):
        assert len(bytes.fromhex(name.removeprefix("resp_"))) == 24
    assert first != second
    assert reader.client.get(f"{PATH}/resp_mine").status_code == 404


@pytest.fixture(scope="module")
def small() -> Iterator[FrontendRun]:
    """A frontend of two, which stores one response."""
    http = HttpConfig(port=0, max_stored_responses=1)
    with FrontendRun(make_config(http, run=RunConfig(frontend_workers=2))) as run:
        yield run


@pytest.fixture(scope="module")
def other(small: FrontendRun) -> OtherFrontend:
    return OtherFrontend(small)


def test_the_least_recently_used_goes_and_a_running_one_stays(small: FrontendRun):
    call, message = send(small, background=True)
    with call:
        running = call.json()["id"]
    first, second = ask(small)["id"], ask(small)["id"]
    statuses = [small.client.get(f"{PATH}/{name}").status_code for name in (running, first, second)]
    assert statuses == [200, 404, 200]
    assert small.gauge("stored_responses") == 2
    play(small, message)
    wait_until(lambda: small.client.get(f"{PATH}/{running}").json()["status"] == "completed")
    assert small.client.get(f"{PATH}/{second}").status_code == 404
    assert small.gauge("stored_responses") == 1


def test_what_another_frontend_has_stored_is_found(small: FrontendRun, other: OtherFrontend):
    mine = ask(small)
    used = other.ask(UseResponse(mine["id"]), UsedResponse)
    assert json.loads(used.response) == mine
    assert [item["role"] for item in json.loads(used.input_items)] == ["user"]
    asked = small.ask(PATH, {"input": "And?", "previous_response_id": "resp_theirs"})
    question = other.take_question()
    assert question.question == UseResponse("resp_theirs", "show")
    other.answer(question, used)
    message = small.take_request()
    assert [each["content"] for each in messages_of(message)] == ["hi", "Yes.", "And?"]
    play(small, message)
    assert asked.response().status_code == 200
    assert (
        other.ask(UseResponse(mine["id"], "delete"), UsedResponse).response == b""
    )  # the later one has taken its place


def test_a_stream_that_another_frontend_has_is_a_clear_error(small: FrontendRun, other: OtherFrontend):
    call = small.call(path=f"{PATH}/resp_theirs?stream=true", method="GET")
    with call:
        other.answer(other.take_question(), UsedResponse(b"{}", b"[]"))
        assert (call.response.status, call.json()["error"]["code"]) == (409, "other_frontend")


class Small(msgspec.Struct):
    """All that the store looks at of a response."""

    id: str
    text: str = "x" * 2000


def test_the_store_is_bounded_by_bytes_and_keeps_what_is_used():
    store: Any = ResponseStore(1000, 10_000)
    for number in range(20):
        store.add(Small(f"resp_{number}"), [])
        assert store.find("resp_0") is not None
    assert len(store) == 4
    assert store.find("resp_19") is not None
    store.add(Small("resp_large", "x" * 20_000), [])
    assert store.find("resp_large") is None
    assert len(store) == 4


JSON_FORMAT = {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}


@pytest.mark.parametrize(("choice", "kind"), [("required", "calls"), ("auto", "json_schema")])
def test_with_tools_an_answer_is_calls_or_its_format_and_a_forced_call_goes_before(
    reader: FrontendRun, choice: str, kind: str
):
    call, message = send(reader, tools=[TOOL], tool_choice=choice, text=JSON_FORMAT)
    with call:
        grammar = message.sampling_params.grammar
        assert grammar is not None
        assert (grammar.kind, grammar.calls is None) == (kind, False)
        play(reader, message)
        assert call.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("body", "is_off", "budget"),
    [({"reasoning": {"effort": "none"}}, True, None), ({"thinking_token_budget": 5}, False, 5), ({}, False, None)],
)
def test_reasoning_may_be_off_or_have_a_budget(
    reader: FrontendRun, body: dict[str, Any], is_off: bool, budget: int | None
):
    call, message = send(reader, **body)
    with call:
        assert message.chat is not None
        assert message.chat.thought is not None
        assert (message.chat.thought.is_off, message.chat.thought.budget) == (is_off, budget)
        assert ("enable_thinking" in json.loads(message.chat.template_kwargs)) == is_off
        play(reader, message)
        assert call.json()["status"] == "completed"


@pytest.mark.parametrize(
    "hosted",
    [
        {"type": "image_generation", "output_format": "png", "size": "auto"},
        {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": {"type": "eq", "key": "a", "value": 1}},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "web_search_2025_08_26", "filters": None, "user_location": {"type": "approximate"}},
        {"type": "web_search_preview_2025_03_11", "search_context_size": "low"},
        {"type": "tool_search"},
    ],
)
def test_tools_that_another_server_would_run_are_left_out(reader: FrontendRun, hosted: dict[str, Any]):
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    for tools, names in (([hosted, function], ["f"]), ([hosted], None)):
        call, message = send(reader, tools=tools)
        with call:
            assert message.chat is not None
            listed = json.loads(message.chat.template_kwargs).get("tools")
            assert (listed and [tool["function"]["name"] for tool in listed]) == names
            play(reader, message, "Yes.")
            assert call.json()["status"] == "completed"


def test_parts_of_a_tools_output_that_are_no_text_become_a_sentence(reader: FrontendRun):
    parts = [{"type": "x_unknown", "data": [1]}, {"type": "input_image", "image_url": "u"}, part("input_text", "a")[0]]
    called = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    call, message = send(reader, input=[called, output])
    with call:
        content = messages_of(message)[-1]["content"]
        assert content == "\n\n".join([UNREAD, UNREAD, "a"])
        play(reader, message, "Yes.")
        call.json()
    refused = reader.client.post(PATH, json={"input": [{"role": "user", "content": parts[:1]}]})
    assert "input[0].content[0]: a part of type 'x_unknown' is not supported" in refused.json()["error"]["message"]
