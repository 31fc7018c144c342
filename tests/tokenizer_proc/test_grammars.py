import json
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frontend.api.tools import ToolFunction, choose_tools, list_tools
from frontend.parsing.model_format import choose_format
from messages.columns import pack_int32
from messages.config import Config, ModelFacts, SchedulingConfig
from messages.errors import RequestError
from messages.replies import UserReply
from messages.requests import AbortMsg, Grammar, SamplingParams, Stamps, UserMsg
from tokenizer_proc.grammars import GrammarChecks, compile_schema
from tokenizer_proc.schema_faults import find_fault

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
TIMEOUT_S = 20.0


def make_checks(wake: Any = lambda: None, timeout_s: float = TIMEOUT_S) -> GrammarChecks:
    facts = ModelFacts(
        model_dir=str(MODEL_DIR),
        tokenizer_dir=str(MODEL_DIR),
        served_names=("m",),
        vocab_size=3072,
        max_model_len=1024,
        eos_token_ids=(0,),
    )
    return GrammarChecks(Config(scheduling=SchedulingConfig(grammar_timeout_s=timeout_s), facts=facts), wake)


@pytest.fixture(scope="module")
def checks() -> GrammarChecks:
    return make_checks()


def message(uid: int, grammar: Grammar, attempt: int = 0) -> UserMsg:
    return UserMsg(uid, attempt, pack_int32([1]), SamplingParams(5, grammar=grammar), Stamps())


def schema(text: object) -> Grammar:
    return Grammar("json_schema", text if isinstance(text, str) else json.dumps(text), "response_format")


BAD_TOOL = {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"uniqueItems": True}}}


@pytest.mark.parametrize("model_format", ["hermes", "mistral", "llama3_json", "openai"])
@pytest.mark.parametrize("num_good", [0, 3])
def test_a_tool_whose_parameters_cannot_be_kept_to_is_named(checks: GrammarChecks, model_format: str, num_good: int):
    """One of the others is named as a part of the marks."""
    names = [*("call", "good", "other")[:num_good], "bad"]
    tools = [ToolFunction(name, parameters=BAD_TOOL if name == "bad" else None) for name in names]
    use = choose_tools(list_tools(tools), "required", choose_format(model_format, "none", ""), allows_several=True)
    assert use.forced is not None
    with pytest.raises(RequestError) as refused:
        checks.check(use.forced)
    text = refused.value.info.message
    assert text.startswith("""tools cannot be used: the parameters of 'bad': Unimplemented keys: ["uniqueItems"]""")
    assert "defs/" in text.partition("(at #/")[2]


GBNF = 'root ::= "a" | "b" root'
TAG = {"structures": [{"begin": "<f=g>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f="]}


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "object"}),
        schema("true"),
        Grammar("regex", "[0-9]+", "guided_regex"),
        Grammar("choice", '["a\\n\\"b", "ü"]', "guided_choice"),
        Grammar("lark", 'start: "a" "b"*', "guided_grammar"),
        Grammar("lark", GBNF, "guided_grammar"),
        Grammar("structural_tag", json.dumps(TAG), "response_format"),
    ],
)
def test_each_kind_becomes_one_of_llguidance(checks: GrammarChecks, grammar: Grammar) -> None:
    checked = checks.check(grammar)
    assert (checked.kind, checked.param) == ("llguidance", grammar.param)
    assert checks.check(checked) == checked


def test_white_space_is_as_asked_for(checks: GrammarChecks) -> None:
    texts = {
        checks.check(msgspec.structs.replace(schema({"type": "object"}), whitespace=whitespace)).text
        for whitespace in (None, "", " ?")
    }
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (schema({"properties": {"a": {"items": {"not": {}}}}}), '["not"] (at #/properties/a/items)'),
        (schema({"$ref": "#/$defs/x", "$defs": {"x": {"type": "objct"}}}), "objct (at #/$defs/x)"),
        (schema({"anyOf": [{"type": "null"}, {"if": {}}]}), '["if"] (at #/anyOf/1)'),
        (schema({"properties": {"a/b~c": {"uniqueItems": True}}}), "(at #/properties/a~1b~0c)"),
        (schema("{"), "EOF"),
        (Grammar("lark", "?!", "guided_grammar"), "GBNF"),
        (Grammar("structural_tag", "{}", "response_format"), "structures"),
        (Grammar("structural_tag", json.dumps({**TAG, "triggers": ["<x"]}), "response_format"), "no trigger"),
    ],
)
def test_a_refusal_names_the_place(checks: GrammarChecks, grammar: Grammar, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        checks.check(grammar)
    info = raised.value.info
    assert (info.status, info.param) == (400, grammar.param)
    assert words in info.message
    assert len(info.message) < 400


def test_a_fault_of_the_whole_has_no_deeper_place() -> None:
    assert find_fault('{"not": {}, "properties": {"a": {}}}', compile_schema) == "#"
    assert find_fault('{"type": "object"}', compile_schema) == ""
    assert find_fault("[" * 100_000, compile_schema) == ""


def take_all(checks: GrammarChecks, woken: threading.Event, count: int) -> list[UserMsg | AbortMsg | UserReply]:
    taken: list[UserMsg | AbortMsg | UserReply] = []
    while len(taken) < count:
        assert woken.wait(TIMEOUT_S)
        woken.clear()
        taken += checks.pop_done()
    return taken


def test_messages_come_back_checked_or_refused_and_no_abort_overtakes() -> None:
    woken = threading.Event()
    checks = make_checks(woken.set)
    checks.start(message(1, schema({"type": "object"})))
    checks.start(message(2, schema({"not": {}}), attempt=3))
    assert checks.keep(AbortMsg(1, 0))
    assert not checks.keep(AbortMsg(5, 0))
    taken = take_all(checks, woken, 3)
    of_first = [each for each in taken if each.uid == 1]
    assert isinstance(of_first[0], UserMsg)
    assert of_first[0].sampling_params.grammar is not None
    assert of_first[0].sampling_params.grammar.kind == "llguidance"
    assert of_first[1:] == [AbortMsg(1, 0)]
    (refusal,) = [each for each in taken if each.uid == 2]
    assert isinstance(refusal, UserReply)
    assert (refusal.attempt, refusal.finish_reason) == (3, "error")
    assert refusal.error is not None
    assert refusal.error.status == 400
    assert not checks.keep(AbortMsg(1, 0))


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    woken, release = threading.Event(), threading.Event()
    checks = make_checks(woken.set, timeout_s=0.2)
    monkeypatch.setattr(checks, "check", lambda grammar: release.wait(TIMEOUT_S))
    checks.start(message(1, schema({})))
    deadline_s = time.monotonic() + TIMEOUT_S
    taken: list[Any] = []
    while not taken and time.monotonic() < deadline_s:
        taken += checks.pop_done()
    release.set()
    (refusal,) = taken
    assert refusal.error.status == 400
    assert "took longer than 0.2 s to compile (--grammar-timeout-s)" in refusal.error.message
