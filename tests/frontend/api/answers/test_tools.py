"""Tools and reasoning in `/v1/chat/completions` over real HTTP, with a ring played by the test."""

import json
from typing import Any

import pytest

from frontend.api.answers.tools import MAX_TOOLS, NamedChoice, check_tools, choose_tools, read_choice, with_calls
from frontend.api.parameters.grammar import MAX_GRAMMAR_BYTES
from frontend.parsing.model_format import choose_format
from messages.errors import RequestError
from messages.ring.replies import PromptReply
from messages.ring.requests import CallGrammar, Grammar, TokenizeMsg
from tests.frontend.frontend_run import Call, FrontendRun, final, position_logprobs, step

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}


def tool(name: str = "get_weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **fields}}


TOOLS = [tool(), tool("now", description="the time", strict=True)]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TWO_CALLS = f'Well.\n{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'


def send(server: FrontendRun, **body: Any) -> tuple[Call, TokenizeMsg]:
    call = server.call({"messages": [USER], **body}, path=PATH)
    return call, server.take_request()


def calls_of(grammar: Grammar) -> CallGrammar:
    assert grammar.calls is not None
    return grammar.calls


def answer(server: FrontendRun, text: str, begins_in_thought: bool = False, **body: Any) -> dict[str, Any]:
    """Returns the choice of a request that gets `text` from the model."""
    call, message = send(server, **body)
    with call:
        server.send(PromptReply(message.uid, 0, "", begins_in_thought=begins_in_thought))
        server.send(step([(message, 1, text[:9])]))
        server.send(final(message, text[9:], (2,), finish_reason="stop"))
        (choice,) = call.json()["choices"]
    return choice


def stream(
    server: FrontendRun, pieces: list[str], begins_in_thought: bool = False, **body: Any
) -> list[dict[str, Any]]:
    """Returns the choices in the chunks of a stream, of which the last piece comes with the end."""
    call, message = send(server, stream=True, **body)
    with call:
        server.send(PromptReply(message.uid, 0, "", begins_in_thought=begins_in_thought))
        for number, piece in enumerate(pieces[:-1]):
            server.send(step([(message, number, piece)]))
        server.send(final(message, pieces[-1], (99,), finish_reason="stop"))
        return [choice for chunk in call.events() for choice in chunk["choices"]]


def test_fields_of_tools_that_are_not_known_go_to_the_template(reader: FrontendRun):
    """Agents send them; `return` is of `transformers`, whose templates read it."""
    own = {"strict": True, "return": {"type": "string"}, "defer_loading": False}
    provided = [{**tool(**own), "cache_control": {"type": "ephemeral"}, "defer_loading": True}]
    call, message = send(reader, tools=provided)
    with call:
        assert message.chat is not None
        assert json.loads(message.chat.template_kwargs)["tools"] == provided
        reader.send(final(message, "", finish_reason="stop"))
        call.json()


def test_the_template_gets_the_tools_and_the_text_keeps_its_marks(reader: FrontendRun):
    call, message = send(reader, tools=TOOLS, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    with call:
        assert message.chat is not None
        kwargs = {"tools": TOOLS, "reasoning_effort": "low", "enable_thinking": False}
        assert json.loads(message.chat.template_kwargs) == kwargs
        assert message.sampling_params.skip_special_tokens is False
        reader.send(final(message))
        call.json()


def test_tools_that_shall_not_be_called_are_not_reported(reader: FrontendRun):
    call, message = send(reader, tools=TOOLS, tool_choice="none")
    with call:
        assert message.chat is not None
        assert message.chat.template_kwargs == b"{}"
        reader.send(final(message, CALL, (1,), finish_reason="stop"))
        (choice,) = call.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
    assert "tool_calls" not in choice["message"]


def test_calls_in_a_whole_reply(reader: FrontendRun):
    choice = answer(reader, f"<think>\nHm\n</think>\n\n{TWO_CALLS}", tools=TOOLS)
    calls = choice["message"].pop("tool_calls")
    assert choice["message"] == {
        "role": "assistant",
        "content": "Well.",
        "refusal": None,
        "reasoning": "Hm",
        "reasoning_content": "Hm",
    }
    assert choice["finish_reason"] == "tool_calls"
    assert [(call["type"], call["function"]) for call in calls] == [
        ("function", {"name": "get_weather", "arguments": '{"city": "Zürich"}'}),
        ("function", {"name": "now", "arguments": "{}"}),
    ]
    assert len({call["id"] for call in calls}) == 2


def test_an_answer_that_is_only_a_call_has_no_content(reader: FrontendRun):
    message = answer(reader, CALL, tools=TOOLS)["message"]
    assert (message["content"], message["reasoning"]) == (None, None)


def test_the_chunks_of_a_call(reader: FrontendRun):
    pieces = [
        "Well",
        ".\n<tool",
        '_call>{"name": "get_wea',
        'ther", "arguments": {"ci',
        'ty": "Zü',
        'rich"}}</tool_call>',
        "",
    ]
    *chunks, last = stream(reader, pieces, tools=TOOLS)
    deltas = [chunk["delta"] for chunk in chunks]
    (begun,) = deltas[3]["tool_calls"]
    call_id = begun.pop("id")
    assert deltas == [
        {"content": "", "role": "assistant"},
        {"content": "Well"},
        {"content": "."},
        {"tool_calls": [{"index": 0, "function": {"arguments": "", "name": "get_weather"}, "type": "function"}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"ci'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'ty": "Zü'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'rich"}'}}]},
    ]
    assert call_id.startswith("call_")
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    assert {chunk["finish_reason"] for chunk in chunks} == {None}


def test_reasoning_that_the_prompt_has_begun(reader: FrontendRun):
    choices = stream(reader, ["Hm", ".\n</thi", "nk>\n\nYes", "!"], True)
    deltas = [choice["delta"] for choice in choices]
    assert deltas[1:] == [
        {"reasoning": "Hm", "reasoning_content": "Hm"},
        {"reasoning": ".", "reasoning_content": "."},
        {"content": "Yes"},
        {"content": "!"},
        {},
    ]
    assert choices[-1]["finish_reason"] == "stop"


def test_reasoning_may_be_left_out(reader: FrontendRun):
    message = answer(reader, "Hm.\n</think>\n\nYes!", True, include_reasoning=False)["message"]
    assert message == {"role": "assistant", "content": "Yes!", "refusal": None}
    assert answer(reader, "Hm. So", True)["message"]["content"] is None


def test_only_the_first_call_where_they_may_not_be_parallel(reader: FrontendRun):
    message = answer(reader, TWO_CALLS, tools=TOOLS, parallel_tool_calls=False)["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]
    deltas = [choice["delta"] for choice in stream(reader, [TWO_CALLS, ""], tools=TOOLS, parallel_tool_calls=False)]
    assert {call["index"] for delta in deltas for call in delta.get("tool_calls", [])} == {0}


def test_a_malformed_call_is_content(reader: FrontendRun):
    text = "<tool_call>\n{'name': 'now'}\n</tool_call>"
    choice = answer(reader, text, tools=TOOLS)
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    deltas = [choice["delta"] for choice in stream(reader, [*text, ""], tools=TOOLS)]
    assert "".join(delta.get("content", "") for delta in deltas) == text


CUT_ENDS = [{"finish_reason": "length"}, {"finish_reason": "stop", "stop_reason": "x"}]


@pytest.mark.parametrize("end", CUT_ENDS)
def test_a_call_that_is_cut_is_shown_but_not_requested(reader: FrontendRun, end: dict[str, Any]):
    text = '<tool_call>{"name": "now", "arguments": {"a'
    call, message = send(reader, tools=TOOLS)
    with call:
        reader.send(final(message, text, (1,), **end))
        (choice,) = call.json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (end["finish_reason"], end.get("stop_reason"))
    assert choice["message"]["content"] is None
    assert [called["function"] for called in choice["message"]["tool_calls"]] == [{"name": "now", "arguments": '{"a'}]
    call, message = send(reader, tools=TOOLS, stream=True)
    with call:
        reader.send(step([(message, 1, text)]))
        reader.send(final(message, "", (1,), **end))
        choices = [choice for chunk in call.events() for choice in chunk["choices"]]
    arguments = [
        called["function"]["arguments"] for choice in choices for called in choice["delta"].get("tool_calls", [])
    ]
    assert ("".join(arguments), choices[-1]["finish_reason"]) == ('{"a', end["finish_reason"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_whose_arguments_are_whole_before_a_stop_string_is_requested(reader: FrontendRun, stream: bool):
    call, message = send(reader, tools=TOOLS, stream=stream)
    with call:
        end = {"finish_reason": "stop", "stop_reason": "</tool_call>"}
        reader.send(final(message, CALL.removesuffix("</tool_call>"), (1,), **end))
        choice = call.events()[-1]["choices"][0] if stream else call.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"


def test_a_malformed_call_in_a_stream_is_not_requested(reader: FrontendRun):
    text = '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>'
    assert answer(reader, text, tools=TOOLS)["message"]["content"] == text
    assert stream(reader, [text, ""], tools=TOOLS)[-1]["finish_reason"] == "stop"
    second = f"{CALL}{text}"
    assert answer(reader, second, tools=TOOLS)["finish_reason"] == "tool_calls"
    assert stream(reader, [second, ""], tools=TOOLS)[-1]["finish_reason"] == "stop"
    assert stream(reader, [second, ""], tools=TOOLS, parallel_tool_calls=False)[-1]["finish_reason"] == "tool_calls"


def test_logprobs_and_token_ids_stay_with_their_steps(reader: FrontendRun):
    call, message = send(reader, tools=TOOLS, stream=True, logprobs=True, return_token_ids=True)
    with call:
        reader.send(PromptReply(message.uid, 0, "hi"))
        reader.send(step([(message, 1, "<tool_call>")], logprobs={0: position_logprobs(1, "<tool_call>", -1.0, 0)}))
        text = '{"name": "now", "arguments": {}}'
        reader.send(step([(message, 2, text)], logprobs={0: position_logprobs(2, text, -2.0, 11)}))
        reader.send(final(message, "</tool_call>", (3,), logprobs=(position_logprobs(3, "x", -3.0, 40),)))
        choices = [choice for chunk in call.events() for choice in chunk["choices"]]
    ids = [token_id for choice in choices for token_id in choice.get("token_ids", [])]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert (ids, [entry["logprob"] for entry in entries]) == ([1, 2, 3], [-1.0, -2.0, -3.0])


def test_choices_are_read_apart(reader: FrontendRun):
    call = reader.call({"messages": [USER], "tools": TOOLS, "n": 2}, path=PATH)
    with call:
        first, second = reader.take_request(), reader.take_request()
        reader.send(final(second, "Hello", (1,), finish_reason="stop"))
        reader.send(final(first, CALL, (1,), finish_reason="stop"))
        choices = call.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop"]
    assert choices[1]["message"]["content"] == "Hello"


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


CHOSEN = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("body", "param", "fragment"),
    [
        ({"tools": "x"}, "tools", "a list of at most"),
        ({"tools": [5]}, "tools", "(at tools[0])"),
        ({"tools": [tool(str(i)) for i in range(10_000)]}, "tools", f"at most {MAX_TOOLS}, got 10000"),
        ({"tools": [tool(), tool("get weather")]}, "tools", "(at tools[1].function.name)"),
        ({"tools": [tool("")]}, "tools", "(at tools[0].function.name)"),
        ({"tools": [tool("x" * 129)]}, "tools", "(at tools[0].function.name)"),
        ({"tools": [tool("f\n")]}, "tools", "(at tools[0].function.name)"),
        ({"tools": [tool("é")]}, "tools", "(at tools[0].function.name)"),
        ({"tools": [tool(), tool()]}, "tools", "tools[1]: there are two tools 'get_weather'"),
        ({"tools": [tool(paramters={})]}, "tools", "tools[0].function: unknown field 'paramters': did you mean"),
        (
            {"tools": [tool("f", **{f"x{i}": 1 for i in range(40)})]},
            "tools",
            "tools[0].function may have at most 32 fields",
        ),
        ({"tools": [tool(parameters="{}")]}, "tools", "(at tools[0].function.parameters)"),
        ({"tools": [tool(description=5)]}, "tools", "(at tools[0].function.description)"),
        ({"tools": [tool(strict="yes")]}, "tools", "(at tools[0].function.strict)"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools", "(at tools[0].type)"),
        ({"tool_choice": CHOSEN}, "tool_choice", "there are no tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", '"required"'),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "missing required field `function`"),
        ({"tools": TOOLS, "tool_choice": {**CHOSEN, "mode": "auto"}}, "tool_choice", "unknown field `mode`"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            "tool_choice must have the name of one of the tools, got 'f'",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "`allowed_tools`"),
        ({"tools": TOOLS, "tool_choice": allowed("required")}, "tool_choice", "(at tool_choice.allowed_tools.tools)"),
        ({"tools": TOOLS, "tool_choice": allowed("none", "now")}, "tool_choice", "allowed_tools.mode"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "now", "f")}, "tool_choice", "got 'f'"),
        ({"tool_choice": allowed("auto", "now")}, "tool_choice", "there are no tools"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "-1 for no limit"),
        ({"thinking_token_budget": 5, "use_beam_search": True}, "thinking_token_budget", "use_beam_search"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        ({"include_reasoning": "no"}, "include_reasoning", "true or false"),
        ({"reasoning_effort": 5}, "reasoning_effort", "a string"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages", "messages[1].tool_call_id"),
    ],
)
def test_what_is_refused(reader: FrontendRun, body: dict[str, Any], param: str, fragment: str):
    response = reader.client.post(PATH, json={"messages": [USER], **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert fragment in error["message"]


JSON_FORMAT = {"response_format": {"type": "json_object"}}


def grammar_of(server: FrontendRun, **body: Any) -> tuple[TokenizeMsg, Grammar | None]:
    """Returns what the ring gets of a chat, and the grammar in it."""
    call, message = send(server, **body)
    with call:
        server.send(final(message, "", (), finish_reason="stop"))
        call.json()
    return message, message.sampling_params.grammar


@pytest.mark.parametrize("choice", ["required", CHOSEN])
@pytest.mark.parametrize("others", [{}, JSON_FORMAT])
def test_a_forced_call_goes_before_what_the_answer_must_be_like(
    reader: FrontendRun, choice: Any, others: dict[str, Any]
):
    """The same holds if answers begin with reasoning."""
    message, grammar = grammar_of(reader, tools=TOOLS, tool_choice=choice, **others)
    assert grammar is not None
    assert (grammar.kind, grammar.text) == ("calls", "")
    assert message.chat is not None
    assert message.chat.thought is not None
    assert (message.chat.thought.begin, message.chat.thought.end) == ("<think>", "</think>")


def test_with_tools_the_answer_may_be_calls_instead_of_what_it_must_be(reader: FrontendRun):
    _, grammar = grammar_of(reader, tools=TOOLS, **JSON_FORMAT)
    assert grammar is not None
    assert (grammar.kind, grammar.param) == ("json_schema", "response_format")
    calls = calls_of(grammar)
    assert (calls.names, calls.separator) == (("get_weather", "now"), "\n")
    _, grammar = grammar_of(reader, tools=TOOLS, parallel_tool_calls=False, **JSON_FORMAT)
    assert grammar is not None
    assert calls_of(grammar).separator is None
    tag = {"type": "structural_tag", "structures": [], "triggers": []}
    for body in ({"tool_choice": "none", **JSON_FORMAT}, {"response_format": tag}):
        _, grammar = grammar_of(reader, tools=TOOLS, **body)
        assert grammar is not None
        assert grammar.calls is None


def test_tools_in_an_unknown_format_cannot_be_with_what_the_answer_must_be():
    model_format = HERMES._replace(forced=None)
    with pytest.raises(RequestError, match="response_format cannot be combined with tools"):
        with_calls(Grammar("regex", "a", "response_format"), check_tools(TOOLS), model_format, allows_several=True)


@pytest.mark.parametrize(
    ("body", "is_off", "kwargs"),
    [
        ({"reasoning_effort": "none"}, True, {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}),
        ({"reasoning_effort": "low"}, False, {"reasoning_effort": "low"}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            False,
            {"enable_thinking": True, "thinking": False, "reasoning_effort": "none"},
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, {"enable_thinking": False}),
    ],
)
def test_no_effort_turns_thinking_off(reader: FrontendRun, body: dict[str, Any], is_off: bool, kwargs: dict[str, Any]):
    message, _ = grammar_of(reader, **body)
    assert message.chat is not None
    assert message.chat.thought is not None
    assert message.chat.thought.is_off == is_off
    assert json.loads(message.chat.template_kwargs) == kwargs


@pytest.mark.parametrize(("provided", "budget"), [(0, 0), (7, 7), (-1, None), (None, None)])
def test_a_thought_may_have_a_budget(reader: FrontendRun, provided: int | None, budget: int | None):
    message, _ = grammar_of(reader, thinking_token_budget=provided)
    assert message.chat is not None
    assert message.chat.thought is not None
    assert message.chat.thought.budget == budget


def test_a_budget_needs_a_format_of_reasoning(server: FrontendRun):
    refused = server.client.post(PATH, json={"messages": [USER], "thinking_token_budget": 7})
    assert refused.status_code == 400
    assert "--reasoning-parser" in refused.json()["error"]["message"]


HERMES = choose_format("hermes", "none", "")
CHOICES = [("required", True, 2, "\n"), ("required", False, 2, None), (CHOSEN, True, 1, None)]


@pytest.mark.parametrize(("choice", "allows_several", "num_calls", "separator"), CHOICES)
def test_a_call_that_must_be_made_is_a_grammar(
    choice: Any, allows_several: bool, num_calls: int, separator: str | None
):
    use = choose_tools(check_tools(TOOLS), read_choice(choice), HERMES, allows_several=allows_several)
    assert use.listed == TOOLS
    assert use.forced is not None
    assert (use.forced.kind, use.forced.param) == ("calls", "tools")
    grammar = calls_of(use.forced)
    ((begin, schema, end),) = grammar.decoded()
    assert schema is not None
    assert (begin, end, grammar.separator) == ("<tool_call>\n", "\n</tool_call>", separator)
    assert len(schema.get("anyOf", [schema])) == num_calls
    if num_calls == 1:
        assert schema["properties"]["name"] == {"const": "now"}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_allowed_tools_the_model_is_notified_alone(mode: str):
    choice = read_choice(allowed(mode, "now"))
    use = choose_tools(check_tools(TOOLS), choice, HERMES, allows_several=True)
    assert (use.listed, [*use.schemas]) == (TOOLS[1:], ["now"])
    whole = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": TOOLS[1:]}}
    assert choose_tools(check_tools(TOOLS), read_choice(whole), HERMES, allows_several=True) == use
    assert (use.forced is not None) == (mode == "required")
    if use.forced is not None:
        grammar = calls_of(use.forced)
        schema = grammar.decoded()[0][1] or {}
        assert (schema["properties"]["name"], grammar.separator) == ({"const": "now"}, "\n")


def test_calls_that_are_not_json_and_tools_that_are_too_long_cannot_be_forced():
    for model_format, tools, fragment in (
        (choose_format("pythonic", "none", ""), TOOLS, "not JSON"),
        (HERMES, [tool(parameters={"description": "x" * MAX_GRAMMAR_BYTES})], "at most"),
    ):
        with pytest.raises(RequestError, match=fragment):
            choose_tools(check_tools(tools), "required", model_format, allows_several=True)


@pytest.mark.parametrize("model_format", ["hermes", "mistral", "llama3_json"])
def test_a_tool_whose_arguments_are_no_object_cannot_be_forced(model_format: str):
    kind = choose_format(model_format, "none", "")
    for schema in ({"type": "string"}, {"type": ["array", "null"]}):
        tools = check_tools([tool("good"), tool("bad", parameters=schema)])
        assert choose_tools(tools, "auto", kind, allows_several=True).forced is None
        assert choose_tools(tools, NamedChoice("good"), kind, allows_several=True).forced is not None
        for choice in ("required", NamedChoice("bad")):
            with pytest.raises(RequestError, match="a call of 'bad' cannot be forced: its parameters must be an obj"):
                choose_tools(tools, choice, kind, allows_several=True)


def test_the_arguments_of_a_forced_call_are_an_object_also_without_a_type():
    kind = choose_format("hermes", "none", "")
    for schema in ({"properties": {"a": {"type": "integer"}}}, {"type": ["object", "null"]}, {}):
        use = choose_tools(check_tools([tool(parameters=schema)]), "required", kind, allows_several=True)
        assert use.forced is not None
        ((_, call, _),) = calls_of(use.forced).decoded()
        assert call is not None
        assert call["properties"]["arguments"] == {**schema, "type": "object"}
