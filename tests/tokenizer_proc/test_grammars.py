import json
from pathlib import Path

import msgspec
import pytest

from frontend.api.answers.tools import ToolFunction, choose_tools, list_tools
from frontend.parsing.model_format import choose_format
from messages.config.server import ModelFacts
from messages.errors import RequestError
from messages.ring.requests import Grammar
from runtime.grammars import GrammarCompiler
from tokenizer_proc.grammars import GrammarReader, compile_schema
from tokenizer_proc.schema_faults import find_fault

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"


@pytest.fixture(scope="module")
def checks() -> GrammarReader:
    facts = ModelFacts(
        model_dir=str(MODEL_DIR),
        tokenizer_dir=str(MODEL_DIR),
        served_names=("m",),
        vocab_size=3072,
        max_model_len=1024,
        eos_token_ids=(0,),
    )
    return GrammarReader(facts)


def schema(text: object) -> Grammar:
    return Grammar("json_schema", text if isinstance(text, str) else json.dumps(text), "response_format")


BAD_TOOL = {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"uniqueItems": True}}}


@pytest.mark.parametrize("model_format", ["hermes", "mistral", "llama3_json", "openai"])
@pytest.mark.parametrize("num_good", [0, 3])
def test_a_tool_whose_parameters_cannot_be_kept_to_is_named(checks: GrammarReader, model_format: str, num_good: int):
    """Another tool's name is part of the marks."""
    names = [*("call", "good", "other")[:num_good], "bad"]
    tools = [ToolFunction(name, parameters=BAD_TOOL if name == "bad" else None) for name in names]
    use = choose_tools(list_tools(tools), "required", choose_format(model_format, "none", ""), allows_several=True)
    assert use.forced is not None
    with pytest.raises(RequestError) as refused:
        checks.check(use.forced)
    text = refused.value.info.message
    assert text.startswith("""tools cannot be used: the parameters of 'bad': Unimplemented keys: ["uniqueItems"]""")
    assert "defs/" in text.partition("(at #/")[2]


def test_a_tool_whose_parameters_cannot_be_kept_to_may_be_offered(checks: GrammarReader):
    """Unless it is forced, its arguments may be any object; other tools keep their schemas."""
    tools = [ToolFunction("bad", parameters=BAD_TOOL), ToolFunction("good", parameters=schema_of("x"))]
    for listed in (tools, tools[:1]):
        use = choose_tools(list_tools(listed), "auto", choose_format("generic", "none", ""), allows_several=True)
        assert use.offered is not None
        text = checks.check(use.offered).text
        assert '"$ref' not in text
        assert accepts(text, '{"name": "bad", "arguments": {"x": [1, 1]}}')
        if listed == tools:
            assert not accepts(text, '{"name": "good", "arguments": {"y": 1}}')


def schema_of(name: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


@pytest.mark.parametrize(
    ("text", "is_possible"),
    [
        ("It is sunny.", True),
        ("It is {sunny}.", True),
        ("[1]", True),
        ('{"name": "get", "arguments": {"x": "a"}}', True),
        ('{"name": "get", "arguments": {"x": "a"}}\n{"name": "now", "arguments": {}}', True),
        ('{"name": "get", "arguments": {"y": "a"}}', False),
        ('{"name": "other", "arguments": {}}', False),
        ('{"answer": 5}', False),
        (" It", False),
    ],
)
def test_an_answer_of_the_generic_form_is_a_text_or_calls(checks: GrammarReader, text: str, is_possible: bool):
    closed = schema_of("x") | {"additionalProperties": False}
    tools = list_tools([ToolFunction("get", parameters=closed), ToolFunction("now")])
    offered = choose_tools(tools, "auto", choose_format("generic", "none", ""), allows_several=True).offered
    assert offered is not None
    assert accepts(checks.check(offered).text, text) == is_possible


def accepts(grammar: str, text: str) -> bool:
    """True if `text` is a whole output by the grammar."""
    library = pytest.importorskip("llguidance")
    compiler = GrammarCompiler(str(MODEL_DIR), 3072, (0,))
    tokenizer = compiler.tokenizer()
    matcher = library.LLMatcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_str(text)
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


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
def test_each_kind_becomes_one_of_llguidance(checks: GrammarReader, grammar: Grammar) -> None:
    checked = checks.check(grammar)
    assert (checked.kind, checked.param) == ("llguidance", grammar.param)
    assert checks.check(checked) == checked


def test_white_space_is_as_requested(checks: GrammarReader) -> None:
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
        (schema({"anyOf": [{"type": "null"}, {"if": {}, "else": False}]}), '["else", "if"] (at #/anyOf/1)'),
        (schema({"properties": {"a/b~c": {"uniqueItems": True}}}), "(at #/properties/a~1b~0c)"),
        (schema("{"), "EOF"),
        (Grammar("lark", "?!", "guided_grammar"), "GBNF"),
        (Grammar("structural_tag", "{}", "response_format"), "structures"),
        (Grammar("structural_tag", json.dumps({**TAG, "triggers": ["<x"]}), "response_format"), "no trigger"),
    ],
)
def test_a_refusal_names_the_place(checks: GrammarReader, grammar: Grammar, words: str) -> None:
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
