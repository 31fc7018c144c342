"""Tokens that only the files next to tokenizer.json name. Without them a chat's prompt would silently be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from detokenizer_proc.vocabulary import load_vocabulary
from messages.errors import BootError
from runtime import tokenizer_files
from runtime.special_tokens import find_token_id, named_tokens
from runtime.tokenizer_files import read_tokenizer_json
from tests.tiny_llama import write_tokenizer
from tokenizer_proc.encoding import load_encoding

TEXT = "<|im_start|>user\nhi<|im_end|> <tool> <x>"
START, END = {"content": "<|im_start|>", "special": True}, {"content": "<|im_end|>", "special": True}
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


def write(path: Path, config: Any, tokens: Any = None) -> Path:
    write_tokenizer(path)
    (path / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if tokens is not None:
        (path / "special_tokens_map.json").write_text(json.dumps(tokens))
    return path


def first_new_id(path: Path) -> int:
    return Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()


def decoder(path: Path, *tokens: dict[str, Any]) -> dict[str, Any]:
    write_tokenizer(path)
    ids = range(first_new_id(path), first_new_id(path) + len(tokens))
    return {str(token_id): FLAGS | token for token_id, token in zip(ids, tokens, strict=True)}


CONFIGS: dict[str, Any] = {
    "decoder": lambda path: ({"added_tokens_decoder": decoder(path, START, END)}, None),
    "decoder with a token that is not special": lambda path: (
        {"added_tokens_decoder": decoder(path, START, {"content": "<tool>", "special": False})},
        None,
    ),
    "list": lambda path: (
        {"additional_special_tokens": ["<|im_start|>", FLAGS | END | {"__type": "AddedToken"}]},
        None,
    ),
    "other list": lambda path: ({"extra_special_tokens": ["<|im_start|>", "<x>"]}, None),
    "named": lambda path: ({"eos_token": "<|im_end|>", "pad_token": None, "bos_token": "<|im_start|>"}, None),
    "all": lambda path: (
        {
            "added_tokens_decoder": decoder(path, START, END),
            "eos_token": "<|im_end|>",
            "additional_special_tokens": ["<|im_start|>", "<x>"],
        },
        {"pad_token": "<tool>"},
    ),
    "map": lambda path: ({}, {"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"}),
    "nothing": lambda path: ({"add_bos_token": True}, None),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    write(tmp_path, *CONFIGS[name](tmp_path))
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = load_encoding(str(tmp_path)).encode(TEXT)
    assert ids == reference(TEXT).input_ids
    assert Tokenizer.from_str(read_tokenizer_json(str(tmp_path))).encode(TEXT).ids == ids, "as grammars have it"
    if name != "nothing":
        assert ids[0] >= first_new_id(tmp_path)


def test_special_ones_are_not_shown(tmp_path: Path) -> None:
    tokens = (START, END, {"content": "<tool>", "special": False})
    write(tmp_path, {"added_tokens_decoder": decoder(tmp_path, *tokens)})
    first = first_new_id(tmp_path)
    vocabulary = load_vocabulary(str(tmp_path), first + 3)
    assert vocabulary.special_ids >= {first, first + 1}
    assert first + 2 not in vocabulary.special_ids
    assert vocabulary.spell(first + 2) == ("<tool>", b"<tool>")


def test_a_token_of_the_vocabulary_becomes_one_that_is_not_split(tmp_path: Path) -> None:
    write(tmp_path, {"additional_special_tokens": ["hi"]})
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["hi"] = first_new_id(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load_encoding(str(tmp_path)).encode("hi") == [tokenizer["model"]["vocab"]["hi"]]


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": [5]},
        {"added_tokens_decoder": {"x": {"content": "<a>"}}},
        {"added_tokens_decoder": {"-1": {"content": "<a>"}}},
        {"added_tokens_decoder": {"1000000000000": {"content": "<a>"}}},
        {"added_tokens_decoder": {"1": "<a>"}},
        {"added_tokens_decoder": {"1": {"content": 5}}},
        {"additional_special_tokens": [5]},
        {"additional_special_tokens": "<a>"},
        {"eos_token": {"text": "<a>"}},
    ],
)
def test_wrong_ones_are_named_with_their_file(tmp_path: Path, config: Any) -> None:
    (name,) = config
    with pytest.raises(BootError, match=rf"tokenizer_config\.json: {name} does not name "):
        load_encoding(str(write(tmp_path, config)))


@pytest.mark.parametrize("config", ["[" * 99_999, "{", "[]", '{"a": NaN}'])
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, config: str) -> None:
    assert named_tokens(write(tmp_path, config)) == []


def test_the_id_of_a_token(tmp_path: Path) -> None:
    write(tmp_path, {"added_tokens_decoder": decoder(tmp_path, START)})
    assert find_token_id(tmp_path, "<|im_start|>") == first_new_id(tmp_path)
    assert find_token_id(tmp_path, "<none>") is None
    (tmp_path / "tokenizer.json").write_text("[" * 99_999)
    assert find_token_id(tmp_path, "<none>") is None


def test_a_tokenizer_that_needs_a_missing_package_reports_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    monkeypatch.setattr(tokenizer_files, "find_spec", lambda name: None)
    monkeypatch.setattr(tokenizer_files, "import_transformers", object)
    monkeypatch.setattr(tokenizer_files, "_keep_torch_out", lambda: None)
    with pytest.raises(BootError, match=r"tokenizer\.model needs a package .* pip install sentencepiece, or save"):
        tokenizer_files.load_tokenizer(str(tmp_path), str, str)
