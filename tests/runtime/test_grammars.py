import json
from pathlib import Path

import pytest
from llguidance import LLMatcher

from runtime.grammars import NUM_KEPT, GrammarCompiler, GrammarError
from tests.tiny_llama import write_tokenizer

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
VOCAB_SIZE, EOS = 3072, 0


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(str(MODEL_DIR), VOCAB_SIZE, (EOS,))


def schema(**fields: object) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(fields))


def schema_of(key: str) -> dict[str, object]:
    properties = {key: {"type": "boolean"}}
    return {"type": "object", "properties": properties, "required": [key], "additionalProperties": False}


def allowed(matcher: LLMatcher) -> set[int]:
    bits = int.from_bytes(matcher.compute_bitmask(), "little")
    return {token_id for token_id in range(VOCAB_SIZE) if bits >> token_id & 1}


def test_nothing_is_loaded_before_the_first_grammar() -> None:
    assert GrammarCompiler("/nonexistent", VOCAB_SIZE, (EOS,)).find("start: /a/") is None


def test_each_matcher_begins_at_the_beginning(compiler: GrammarCompiler) -> None:
    text = LLMatcher.grammar_from_regex("[ab]c")
    first = compiler.compile(text)
    beginning = allowed(first)
    assert beginning
    assert EOS not in beginning
    token_id = next(iter(beginning))
    assert first.consume_token(token_id)
    for matcher in (compiler.compile(text), compiler.find(text)):
        assert matcher is not None
        assert allowed(matcher) == beginning
    assert compiler.tokenizer().eos_tokens == [EOS]


def test_the_end_may_come_where_the_grammar_accepts(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(LLMatcher.grammar_from_regex("a*"))
    assert EOS in allowed(matcher)


def test_a_grammar_that_has_failed_inside_of_llguidance_is_compiled_anew(compiler: GrammarCompiler) -> None:
    """llguidance cannot continue an output that may follow either of two grammars with different whitespace."""
    others = [
        {"name": key, "json_schema": {**schema_of(key), "x-guidance": {"whitespace_pattern": white}}}
        for key, white in (("name", "[ ]?"), ("ok", "[ \n]*"))
    ]
    text = json.dumps({"grammars": [{"lark_grammar": "start: @name | @ok"}, *others]})
    first = compiler.compile(text)
    beginning = allowed(first)
    for token_id in compiler.tokenizer().tokenize_str(' {"ok'):
        first.consume_token(token_id)
    first.compute_bitmask()
    assert "panic" in first.get_error()
    again = compiler.compile(text)
    assert allowed(again) == beginning
    assert not again.get_error()


def test_only_so_many_are_kept(compiler: GrammarCompiler) -> None:
    texts = [LLMatcher.grammar_from_regex(f"a{{{count}}}") for count in range(1, NUM_KEPT + 2)]
    for text in texts:
        compiler.compile(text)
    assert compiler.find(texts[0]) is None
    assert compiler.find(texts[-1]) is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (schema(**{"$ref": "#"}), "never ends"),
        (schema(**{"not": {}}), 'Unimplemented keys: ["not"]'),
        (LLMatcher.grammar_from_regex("(a"), "unclosed group"),
        (LLMatcher.grammar_from_lark("start: foo"), 'unknown name: "foo"'),
        ("{", "EOF"),
        (LLMatcher.grammar_from_regex("a" * 5_000 + "("), "…"),
    ],
)
def test_what_cannot_be_used_is_notified_shortly(compiler: GrammarCompiler, text: str, words: str) -> None:
    with pytest.raises(GrammarError) as raised:
        compiler.compile(text)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_model_with_padded_vocabulary_and_one_with_too_small_a_one(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 320)
    for vocab_size in (400, 320, 300):
        compiler = GrammarCompiler(str(tmp_path), vocab_size, ())
        matcher = compiler.compile(LLMatcher.grammar_from_regex("[a-c]+"))
        assert len(matcher.compute_bitmask()) >= vocab_size / 8


@pytest.mark.parametrize("text", [None, "{}", "garbage"])
def test_a_model_whose_tokenizer_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(GrammarError, match="this model's tokenizer cannot be used with a grammar"):
        GrammarCompiler(str(tmp_path), 10, ()).compile("start: /a/")


@pytest.mark.shared
def test_a_vocabulary_that_cannot_write_the_grammar(shared_dir: Path) -> None:
    compiler = GrammarCompiler(str(shared_dir / "models" / "tinystories-656k-llama"), 2048, (2,))
    with pytest.raises(GrammarError, match="vocabulary cannot write the beginning"):
        compiler.compile(schema(type="object"))


@pytest.mark.shared
@pytest.mark.parametrize(("name", "vocab_size", "eos"), [("gpt2", 50257, 50256), ("qwen2", 151936, 151645)])
def test_real_vocabularies(shared_dir: Path, name: str, vocab_size: int, eos: int) -> None:
    compiler = GrammarCompiler(str(shared_dir / "tokenizers" / name), vocab_size, (eos,))
    matcher = compiler.compile(schema(type="object", properties={"a": {"type": "integer"}}, required=["a"]))
    ids = compiler.tokenizer().tokenize_str('{"a": 12}')
    assert matcher.consume_tokens(ids)
    assert matcher.is_stopped()
    assert not matcher.get_error()
