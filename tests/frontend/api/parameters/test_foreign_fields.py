"""Field names of other servers: none is one of ours, and every endpoint that generates knows them."""

import pytest

from frontend.api.generate.generate import GenerateBody
from frontend.api.openai.chat import ChatBody
from frontend.api.openai.completions import CompletionBody
from frontend.api.parameters.foreign_fields import FOREIGN, RENAMED
from frontend.api.parameters.generation_body import IGNORED, REFUSED
from frontend.api.parameters.sampling import SamplingFields
from messages.config.server import HttpConfig
from tests.frontend.frontend_run import FrontendRun, final, make_config

OURS = {name for body in (GenerateBody, CompletionBody, ChatBody) for name in body.__struct_fields__}
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")
GOOD = {"prompt": "hi", "stream": False}
GOOD_CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def good(path: str) -> dict[str, object]:
    return dict(GOOD_CHAT if path.endswith("/chat/completions") else GOOD)


def test_no_name_has_two_meanings():
    assert not (FOREIGN | set(RENAMED)) & (OURS | set(REFUSED) | set(IGNORED))
    assert not FOREIGN & set(RENAMED)
    assert set(RENAMED.values()) <= set(SamplingFields.__struct_fields__)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["repeat_penalty", "top_a", "models", "timeout", "max_new_tokens", "n_predict"])
def test_every_endpoint_takes_them(server: FrontendRun, path: str, name: str):
    asked = server.ask(path, {**good(path), name: 3})
    server.send(final(server.take_request()))
    assert asked.response().status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["structural_tag", "format", "image_data", "lora_path"])
def test_what_the_answer_must_be_like_is_refused_and_not_dropped(server: FrontendRun, path: str, name: str):
    reply = server.client.post(path, json={**good(path), name: "x"})
    assert reply.status_code == 400
    assert (reply.json()["error"]["param"], reply.json()["error"]["code"]) == (name, "not_supported")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrapper", ["extra_body", "sampling_params"])
def test_what_the_answer_must_be_like_counts_also_in_a_wrapper(server: FrontendRun, path: str, wrapper: str):
    for inner, text in (
        ({"guided_regex": "a+", "temperature": 3}, "a+"),
        ({"structured_outputs": {"regex": "b+"}, "guided_json": None}, "b+"),
        ({"response_format": {"type": "json_object"}}, '{"type":"object"}'),
        ({"regex": "c+", "ebnf": "", "json_schema": {}}, "c+"),
    ):
        asked = server.ask(path, {**good(path), wrapper: inner})
        message = server.take_request()
        server.send(final(message))
        assert asked.response().status_code == 200
        assert message.sampling_params.grammar is not None
        assert message.sampling_params.grammar.text == text
        assert message.sampling_params.temperature == 1.0
    for provided, param in (
        ({wrapper: {"structural_tag": "{}"}}, "structural_tag"),
        ({wrapper: {"guided_regex": "a"}, "guided_regex": "b"}, "guided_regex"),
        ({"extra_body": {"guided_regex": "a"}, "sampling_params": {"guided_regex": "b"}}, "guided_regex"),
        ({wrapper: {"structured_outputs": {}}}, "structured_outputs"),
    ):
        reply = server.client.post(path, json={**good(path), **provided})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    asked = server.ask(path, {**good(path), wrapper: {"guided_regex": "a"}, "guided_regex": "a"})
    server.send(final(server.take_request()))
    assert asked.response().status_code == 200
    asked = server.ask(path, {**good(path), wrapper: [{"guided_regex": "a"}]})
    server.send(final(server.take_request()))
    assert asked.response().status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"regex": "a+"}, "regex"),
        ({"regex": "a+", "guided_regex": "a+"}, "regex"),
        ({"ebnf": 'root ::= "a"'}, "lark"),
        ({"grammar": 'root ::= "a"', "ebnf": 'root ::= "a"', "json_schema": {}}, "lark"),
        ({"json_schema": {"type": "array"}, "grammar": ""}, "json_schema"),
        ({"json_schema": '{"type": "array"}', "guided_json": '{"type": "array"}'}, "json_schema"),
        ({"json_schema": {}, "regex": "", "ebnf": "", "grammar": None}, None),
    ],
)
def test_constraints_have_the_names_of_other_servers(
    server: FrontendRun, path: str, fields: dict[str, object], kind: str | None
):
    asked = server.ask(path, {**good(path), **fields})
    message = server.take_request()
    server.send(final(message))
    assert asked.response().status_code == 200
    grammar = message.sampling_params.grammar
    assert (grammar and grammar.kind) == kind


SILLY_TAVERN = {
    "max_tokens": 5,
    "max_new_tokens": 5,
    "min_tokens": 2,
    "temperature": 0.7,
    "top_p": 1,
    "typical_p": 1,
    "typical": 1.0,
    "top_k": 40,
    "min_p": 0,
    "repetition_penalty": 1.1,
    "rep_pen": 1.1,
    "repeat_penalty": 1.10,
    "rep_pen_range": 0,
    "repetition_penalty_range": 0,
    "repeat_last_n": 0,
    "sampler_seed": -1,
    "seed": 7,
    "nsigma": 0,
    "top_n_sigma": 0,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat": 0,
    "ignore_eos": False,
    "stop": ["\n"],
    "stopping_strings": ["\n"],
    "guided_grammar": None,
    "grammar": "",
    "json_schema": None,
}
"""What its four kinds of text completion servers get of these names, all at once."""


@pytest.mark.parametrize("path", PATHS)
def test_two_names_of_one_field_may_have_one_value(server: FrontendRun, path: str):
    asked = server.ask(path, {**good(path), **SILLY_TAVERN})
    message = server.take_request()
    server.send(final(message))
    assert asked.response().status_code == 200
    params = message.sampling_params
    assert (params.max_tokens, params.repetition_penalty, params.seed, params.typical_p) == (5, 1.1, 7, 1)


def test_the_flag_refuses_all_that_is_not_ours():
    with FrontendRun(make_config(HttpConfig(port=0, strict_fields=True))) as run:
        for path in PATHS:
            for name in ("top_a", "max_new_tokens", "zzz"):
                reply = run.client.post(path, json={**good(path), name: 3})
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
        asked = run.ask("/generate", {**GOOD, "user": "me", "verbosity": "low", "keep_alive": "5m"})
        run.send(final(run.take_request()))
        assert "warnings" not in asked.response().json()
        assert run.client.post("/abort_request", json={"all": True, "zzz": 1}).status_code == 400
