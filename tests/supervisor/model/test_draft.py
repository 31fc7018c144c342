"""Which models may draft for which, and the errors for those that may not."""

import json
from pathlib import Path
from typing import Any

import pytest

from messages.config.server import ModelConfig, SchedulingConfig
from messages.errors import BootError, UsageError
from supervisor.model.draft import add_draft_facts
from supervisor.model.facts import read_model_facts

VOCAB = {"a": 0, "b": 1, "c": 2}


def write_model(path: Path, vocab_size: int, tokens: Any = None, added: Any = (), context: int = 64) -> Path:
    path.mkdir()
    config = {"vocab_size": vocab_size, "max_position_embeddings": context}
    (path / "config.json").write_text(json.dumps(config))
    if tokens is not None:
        tokenizer = {"model": {"type": "BPE", "vocab": tokens}, "added_tokens": list(added)}
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def facts_with(model: Path, draft: str, speculative: Any = "draft"):
    flags = ModelConfig(max_model_len=48)
    facts = read_model_facts(flags, model, model, "model")
    return add_draft_facts(facts, flags, SchedulingConfig(speculative=speculative, draft_model=draft))


@pytest.mark.parametrize(
    ("vocab_size", "draft_size", "tokens", "draft_tokens"),
    [
        (3, 3, VOCAB, VOCAB),
        (3, 3, VOCAB, None),
        (3, 8, VOCAB, VOCAB),
        (8, 4, VOCAB, VOCAB),
        (3, 3, [["a", -1.0], ["b", -2.5], ["c", -2.6]], VOCAB),
    ],
    ids=["the same", "no tokenizer to compare", "a padded draft model", "a padded model", "a unigram list"],
)
def test_a_model_of_the_same_vocabulary_may_draft(tmp_path, vocab_size, draft_size, tokens, draft_tokens):
    model = write_model(tmp_path / "model", vocab_size, tokens)
    draft = write_model(tmp_path / "draft", draft_size, draft_tokens)
    facts = facts_with(model, str(draft)).draft
    assert facts is not None
    assert (facts.model_dir, facts.vocab_size, facts.max_model_len) == (str(draft), draft_size, 48)


def test_a_draft_model_of_a_shorter_context_keeps_it(tmp_path):
    model = write_model(tmp_path / "model", 3)
    facts = facts_with(model, str(write_model(tmp_path / "draft", 3, context=32))).draft
    assert facts is not None
    assert facts.max_model_len == 32


@pytest.mark.parametrize(
    ("draft_size", "draft_tokens", "added", "words"),
    [
        (4, None, (), "4 tokens, the model's 3"),
        (2, None, (), "2 tokens, the model's 3"),
        (2, VOCAB, (), "both need 3"),
        (3, {"a": 0, "b": 2, "c": 1}, (), "the same tokenizer"),
        (8, VOCAB, [{"id": 3, "content": "<x>"}], "the same tokenizer"),
        (3, {"a": "x"}, (), "cannot be read as a tokenizer"),
    ],
)
def test_others_are_refused_at_the_start(tmp_path, draft_size, draft_tokens, added, words):
    model = write_model(tmp_path / "model", 3, VOCAB)
    draft = write_model(tmp_path / "draft", draft_size, draft_tokens, added)
    with pytest.raises(BootError, match=words):
        facts_with(model, str(draft))


def test_a_directory_without_a_model_is_refused(tmp_path):
    model = write_model(tmp_path / "model", 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BootError, match="contains no model"):
        facts_with(model, str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="--draft-model: there is no directory"):
        facts_with(model, str(tmp_path / "nowhere"))


def test_flags_that_need_each_other(tmp_path):
    model = write_model(tmp_path / "model", 3)
    with pytest.raises(UsageError, match="--draft-model DIR"):
        facts_with(model, "")
    for speculative in ("none", "ngram"):
        with pytest.raises(UsageError, match="--speculative draft alone"):
            facts_with(model, str(model), speculative)
        assert facts_with(model, "", speculative).draft is None
