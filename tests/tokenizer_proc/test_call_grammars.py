"""Grammars of forced calls: the outputs they accept, with marks that are special tokens or text."""

from pathlib import Path

import pytest
from llguidance import LLMatcher

from messages.ring.requests import CallGrammar
from runtime.grammars import GrammarCompiler
from tokenizer_proc.grammars import call_grammar

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
WORD = {"type": "object", "properties": {"w": {"enum": ["a", "b"]}}, "required": ["w"], "additionalProperties": False}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(str(MODEL_DIR), 3072, (0,))


def takes(compiler: GrammarCompiler, calls: CallGrammar, text: str) -> bool:
    """True if the grammar accepts the whole text and may end with it."""
    tokenizer = compiler.tokenizer()
    grammar = call_grammar(calls, tokenizer)
    assert not LLMatcher.validate_grammar(grammar, tokenizer)
    matcher = LLMatcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ('<call>{"n": 5}</call>', True),
        ('<call>{"n":5}</call>', True),
        ('<other>{"w": "b"}', True),
        ('<call>{"n":  5}</call>', False),
        ('<call>{"w": "b"}</call>', False),
        ('<call>{"n": 5}', False),
        ('Well. <call>{"n": 5}</call>', False),
        ('<call>{"n": 5}</call><other>{"w": "a"}', False),
    ],
)
def test_an_answer_is_one_of_the_calls(compiler: GrammarCompiler, text: str, is_taken: bool):
    calls = CallGrammar().with_calls((("<call>", NUMBER, "</call>"), ("<other>", WORD, "")))
    assert takes(compiler, calls, text) == is_taken


def test_more_calls_may_follow_the_separator(compiler: GrammarCompiler):
    calls = CallGrammar(separator="\n").with_calls((("<call>", NUMBER, "</call>"),))
    one = '<call>{"n": 5}</call>'
    assert takes(compiler, calls, one)
    assert takes(compiler, calls, f"{one}\n{one}\n{one}")
    assert not takes(compiler, calls, f"{one}{one}")
    assert not takes(compiler, calls, f"{one}\n")


def test_a_mark_that_is_a_special_token_is_that_token():
    compiler = GrammarCompiler(
        str(MODEL_DIR), 3072, (1,)
    )  # the model has one special token, which must not end it here
    special = compiler.tokenizer().decode_str([0])
    calls = CallGrammar().with_calls(((f"{special}go ", NUMBER, ""),))
    assert takes(compiler, calls, f'{special}go {{"n": 1}}')
    tokenizer = compiler.tokenizer()
    matcher = LLMatcher(tokenizer, call_grammar(calls, tokenizer))
    assert matcher.try_consume_tokens(tokenizer.tokenize_str(special[:2]) + tokenizer.tokenize_str(special[2:])) == 0
