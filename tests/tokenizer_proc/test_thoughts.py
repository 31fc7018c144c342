"""Thoughts in prompts and grammars: where a prompt ends, how a thought is closed, and what may precede an answer."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from llguidance import LLMatcher, LLTokenizer

from frontend.api.answers.tools import ToolFunction, choose_tools, list_tools, with_calls
from frontend.parsing.deltas import CallBroken, CallStart, Content
from frontend.parsing.model_format import choose_format
from frontend.parsing.parser import ResponseParser
from messages.columns import unpack_int32
from messages.config.server import ModelFacts
from messages.ring.requests import Grammar, SamplingParams, Stamps, Thought, TokenizeMsg
from tests.tokenizer_proc.parts import chat, encoding_of, templates_of, user
from tokenizer_proc.grammars import GrammarReader
from tokenizer_proc.prompts import PromptReader
from tokenizer_proc.thoughts import place_of

ASSETS = Path(__file__).resolve().parents[2] / "assets"
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}A: <think>\n{% endif %}"
)
NEVER_SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}A: {# the model writes <think> itself #}"
DEEPSEEK = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ messages[-1].content }}"
    "{% if thinking %}<think>{% else %}</think>{% endif %}"
)
FORMAT = choose_format("hermes", "auto", "<think> enable_thinking")
THOUGHT = FORMAT.thought or Thought("", "")


def make_checks(path: Path, vocab_size: int, *eos_ids: int) -> GrammarReader:
    facts = ModelFacts(
        model_dir=str(path),
        tokenizer_dir=str(path),
        served_names=("m",),
        vocab_size=vocab_size,
        max_model_len=4096,
        eos_token_ids=eos_ids,
    )
    return GrammarReader(facts)


@pytest.fixture(scope="module", params=["marks are tokens", "marks are spelt"])
def checks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarReader:
    tokenizer = json.loads((ASSETS / "tool-caller" / "tokenizer.json").read_text())
    if request.param == "marks are tokens":
        for index, content in enumerate(("<think>", "</think>")):
            added = {**tokenizer["added_tokens"][-1], "id": 595 + index, "content": content}
            tokenizer["added_tokens"].append(added)
    path = tmp_path_factory.mktemp("tokenizer")
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return make_checks(path, 597, 0)


def matcher_of(checks: GrammarReader, grammar: Grammar) -> tuple[LLMatcher, LLTokenizer]:
    tokenizer = checks._compiler.tokenizer()
    text = checks.check(grammar).text
    assert not LLMatcher.validate_grammar(text, tokenizer)
    return LLMatcher(tokenizer, text), tokenizer


def takes(checks: GrammarReader, grammar: Grammar, text: str) -> bool:
    """True if the grammar accepts the whole text and nothing may follow."""
    matcher, tokenizer = matcher_of(checks, grammar)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


OK = Grammar(
    "json_schema",
    '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}',
    "response_format",
    "",
)


def placed(grammar: Grammar, place: Any, **fields: Any) -> Grammar:
    return msgspec.structs.replace(grammar, thought=msgspec.structs.replace(THOUGHT, place=place, **fields))


@pytest.mark.parametrize(
    ("place", "text", "is_taken"),
    [
        ("inside", 'Hm. {"ok": 1}\n</think>\n\n{"ok":true}', True),
        ("inside", '</think>{"ok":true}', True),
        ("inside", '{"ok":true}', False),
        ("inside", "Hm.</think>\n\nYes", False),
        ("before", '<think>\nHm.\n</think>\n\n{"ok":true}', True),
        ("before", '{"ok":true}', True),
        ("before", 'Hm.</think>{"ok":true}', False),
        ("behind", '{"ok":true}', True),
        ("behind", '<think>Hm.</think>{"ok":true}', False),
    ],
)
def test_the_answer_is_held_to_its_grammar_after_the_thought(
    checks: GrammarReader, place: str, text: str, is_taken: bool
) -> None:
    assert takes(checks, placed(OK, place), text) == is_taken


@pytest.mark.parametrize("kind", ["regex", "choice", "lark"])
def test_every_kind_of_grammar_has_its_thought(checks: GrammarReader, kind: Any) -> None:
    text = {"regex": "[0-9]+", "choice": '["12", "13"]', "lark": "start: /[0-9]+/"}[kind]
    grammar = placed(Grammar(kind, text, "p"), "inside")
    assert takes(checks, grammar, "Let me see: 11?\n</think>\n\n12")
    assert not takes(checks, grammar, "12")


TOOLS = list_tools([ToolFunction("now"), ToolFunction("get", parameters={"type": "object", "required": ["x"]})])
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_an_answer_is_calls_or_what_it_must_be(checks: GrammarReader) -> None:
    grammar = with_calls(OK, TOOLS, FORMAT, allows_several=True)
    for lead, place in (("", "behind"), ("", "before"), ("<think>Hm.</think>\n\n", "before"), ("</think>", "inside")):
        for text, is_taken in {
            '{"ok":true}': True,
            CALL: True,
            f"{CALL}\n{CALL}": True,
            CALL.replace("now", "get").replace("{}", '{"any": [1, "thing"]}'): True,
            CALL.replace("now", "later"): False,
            '{"no":true}': False,
            f'{CALL}\n{{"ok":true}}': False,
        }.items():
            assert takes(checks, placed(grammar, place), lead + text) == is_taken, (lead, text)
    assert not takes(checks, with_calls(OK, TOOLS, FORMAT, allows_several=False), f"{CALL}\n{CALL}")


@pytest.mark.parametrize(
    ("parser", "call"),
    [
        ("qwen3_coder", "<tool_call>\n<function=get>\n<parameter=x>\n{5} <\n</parameter>\n</function>\n</tool_call>"),
        ("pythonic", '[get(x="a]b"), now()]'),
        ("llama3_json", '{"name": "get", "parameters": {"x": 1}}'),
        ("mistral", '[TOOL_CALLS][{"name": "get", "arguments": {"x": 1}}]'),
    ],
)
def test_calls_in_every_format_may_stand_for_the_answer(checks: GrammarReader, parser: str, call: str) -> None:
    model_format = choose_format(parser, "none", "")
    grammar = with_calls(OK, TOOLS, model_format, allows_several=True)
    assert takes(checks, grammar, call)
    assert takes(checks, grammar, '{"ok":true}')
    assert not takes(checks, grammar, "Well.")
    assert model_format.with_tools is not None
    parser_of_call = ResponseParser(model_format.with_tools, TOOLS.schemas)
    deltas = [*parser_of_call.feed(call), *parser_of_call.finish()]
    assert any(isinstance(delta, CallStart) for delta in deltas)
    assert not any(isinstance(delta, CallBroken) for delta in deltas)


@pytest.mark.parametrize("whitespace", [None, "", "[ \\n]*"])
def test_calls_without_marks_have_the_white_space_of_the_answer(checks: GrammarReader, whitespace: str | None) -> None:
    """With two kinds of whitespace, llguidance fails while the output may still follow either grammar."""
    answer = msgspec.structs.replace(OK, whitespace=whitespace)
    grammar = with_calls(answer, TOOLS, choose_format("llama3_json", "none", ""), allows_several=True)
    blanks = "" if whitespace == "" else "\n"
    for text in ('{%s"name":"get","parameters":{"x":1}}', '{%s"ok":true}'):
        assert takes(checks, grammar, blanks + text % blanks)


def test_a_call_is_forced_after_the_thought(checks: GrammarReader) -> None:
    forced = choose_tools(TOOLS, "required", FORMAT, allows_several=False).forced
    assert forced is not None
    assert takes(checks, placed(forced, "inside"), f"Which one?\n</think>\n\n{CALL}")
    assert takes(checks, placed(forced, "before"), f"<think>Which?</think>\n{CALL}")
    assert takes(checks, placed(forced, "before"), CALL)
    assert takes(checks, placed(forced, "behind"), CALL)
    assert not takes(checks, placed(forced, "behind"), f"<think></think>{CALL}")
    assert not takes(checks, placed(forced, "inside"), "I cannot.</think>Sorry")


def test_the_channels_of_gpt_oss(checks: GrammarReader) -> None:
    model_format = choose_format("openai", "openai_gptoss", "")
    assert model_format.thought is not None
    grammar = with_calls(OK, TOOLS, model_format, allows_several=True)
    grammar = msgspec.structs.replace(grammar, thought=model_format.thought)
    analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    final = '<|channel|>final<|message|>{"ok":true}'
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    for text in (final, call, analysis + final, analysis + call):
        assert takes(checks, grammar, text), text
    assert not takes(checks, grammar, '{"ok":true}')
    assert not takes(checks, grammar, f"{analysis}{analysis}{final}")


def test_a_call_of_gpt_oss_ends_with_an_end_token(tmp_path: Path) -> None:
    """`<|call|>` ends the output: a grammar that has it in its text would leave no token."""
    tokenizer = json.loads((ASSETS / "tool-caller" / "tokenizer.json").read_text())
    marks = ("channel", "message", "constrain", "start", "end", "return", "call")
    for index, mark in enumerate(marks):
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 595 + index, "content": f"<|{mark}|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    ends = (600, 601)
    checks = make_checks(tmp_path, 602, *ends)
    model_format = choose_format("openai", "openai_gptoss", "")
    forced = choose_tools(TOOLS, "required", model_format, allows_several=True).forced
    assert forced is not None
    checked = checks.check(msgspec.structs.replace(forced, thought=model_format.thought)).text
    matcher = checks._compiler.compile(checked)
    tokens = checks._compiler.tokenizer().tokenize_str(
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}", parse_special=True
    )
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    mask = numpy.unpackbits(numpy.frombuffer(matcher.compute_bitmask(), numpy.uint8), bitorder="little")
    assert mask.nonzero()[0].tolist() == [*ends]


def test_a_budget_is_a_limit_next_to_the_grammar(checks: GrammarReader) -> None:
    tokenizer = checks._compiler.tokenizer()
    opening, closing = (tokenizer.tokenize_str(mark, parse_special=True) for mark in ("<think>", "</think>"))
    for place, num_begin in (("before", len(opening)), ("inside", 0)):
        for grammar in (OK, Grammar("thought", "", "b")):
            checked = checks.check(placed(grammar, place, budget=7))
            assert bool(checked.text) == (grammar is OK)
            assert checked.limit is not None
            assert (checked.limit.num_tokens, checked.limit.num_begin) == (7, num_begin)
            assert unpack_int32(checked.limit.end_ids).tolist() == closing
            assert checks.check(checked) == checked
    assert checks.check(placed(OK, "behind", budget=7)).limit is None
    assert checks.check(placed(OK, "inside")).limit is None


@pytest.mark.parametrize(
    ("prompt", "begun", "place"),
    [
        ("A: <think>\n", "", "inside"),
        ("A: <think>", "", "inside"),
        ("A: <think>\n\n</think>\n\n", "", "behind"),
        ("A: </think>", "", "behind"),
        ("What is <think>?\nA:", "", "before"),
        ("A: x", "x", "behind"),
        ("A: <think>x", "<think>x", "inside"),
        ("A: <think>x</think>y", "<think>x</think>y", "behind"),
    ],
)
def test_where_a_prompt_ends(prompt: str, begun: str, place: str) -> None:
    assert place_of(prompt, THOUGHT, begun) == place


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (QWEN3, "assistant\n<think>\n\n</think>\n\n"),
        (OPENS, "A: <think>\n\n</think>\n\n"),
        (NEVER_SAYS, "A: <think>\n\n</think>\n\n"),
        (DEEPSEEK, "Hi</think>"),
    ],
)
def test_thinking_that_is_off_is_closed_in_the_prompt(source: str, end: str) -> None:
    off = {"enable_thinking": False, "thinking": False}
    thought = msgspec.structs.replace(THOUGHT, is_off=True)
    rendered = templates_of(source).render(chat(user(), thought=thought, template_kwargs=off))
    assert rendered.endswith(end)
    assert rendered.count("</think>") == 1
    as_it_is = templates_of(source).render(chat(user(), thought=THOUGHT, template_kwargs={}))
    assert as_it_is == templates_of(source).render(chat(user(), template_kwargs={}))


@pytest.mark.parametrize(
    ("source", "params", "budget", "place"),
    [
        (OPENS, SamplingParams(5, grammar=OK), None, "inside"),
        (OPENS, SamplingParams(5), 7, "inside"),
        (OPENS, SamplingParams(5), None, None),
        (QWEN3, SamplingParams(5, grammar=OK), 7, "before"),
        (DEEPSEEK, SamplingParams(5, grammar=OK), None, "behind"),
        (DEEPSEEK, SamplingParams(5), 7, None),
    ],
)
def test_the_grammar_of_a_chat_knows_where_its_prompt_ends(
    source: str, params: SamplingParams, budget: int | None, place: str | None
) -> None:
    reader = PromptReader(encoding_of(lambda text: [*map(ord, text)]), 128, 1000)
    thought = msgspec.structs.replace(THOUGHT, budget=budget)
    asked = TokenizeMsg(1, 0, None, b"", params, Stamps(), chat=chat(user(), thought=thought))
    assert asked.chat is not None
    message, *_ = reader.read(asked, reader.text_of(asked, templates_of(source).render), begun_ns=1)
    assert message.begins_in_thought == (source == OPENS)
    grammar = message.sampling_params.grammar
    if place is None:
        assert grammar is None
        return
    assert grammar is not None
    assert grammar.thought == msgspec.structs.replace(thought, place=place)
    assert grammar.kind == ("json_schema" if params.grammar else "thought")


@pytest.mark.parametrize("source", [QWEN3, OPENS, DEEPSEEK])
@pytest.mark.parametrize("is_on", [True, False])
def test_the_parser_of_answers_and_the_grammar_agree_where_the_prompt_ends(source: str, is_on: bool) -> None:
    """With every template, the text that the grammar accepts as the answer is parsed as content."""
    kwargs = {"enable_thinking": is_on, "thinking": is_on}
    prompt = templates_of(source).render(chat(user("What is <think>?"), template_kwargs=kwargs))
    assert FORMAT.without_tools is not None
    place = place_of(prompt, THOUGHT)
    text = {"inside": "Hm.</think>", "before": "<think>Hm.</think>", "behind": ""}[place] + '{"ok":true}'
    parser = ResponseParser(FORMAT.without_tools, {}, THOUGHT.begin if place == "inside" else "")
    deltas = [*parser.feed(text), *parser.finish()]
    assert "".join(delta.text for delta in deltas if isinstance(delta, Content)) == '{"ok":true}'


def test_a_structural_tag_has_its_thought(checks: GrammarReader) -> None:
    tag = {"structures": [{"begin": "<f=g>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f="]}
    grammar = placed(Grammar("structural_tag", json.dumps(tag), "response_format"), "inside")
    assert takes(checks, grammar, "Hm <f=.</think>\n\nSo: <f=g>{}</f> and more")
    assert not takes(checks, grammar, "Hm.</think>So: <f=h>{}</f>")
