"""Special tokens, and metadata that is damaged."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from messages.errors import BootError
from runtime.chat_files import read_chat_files
from runtime.special_tokens import named_tokens
from supervisor.model.gguf.tokenizer.tokenizer_json import write_tokenizer
from supervisor.model.gguf.tokenizer.vocabulary import TokenType
from tests.supervisor.model.gguf.tokenizer.vectors import reduced_metadata

T = "tokenizer.ggml."


def tokenizer_of(metadata: dict[str, Any], directory: Path) -> Tokenizer:
    write_tokenizer(metadata, directory)
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def with_tokens(name: str, tokens: Mapping[str, int], **fields: Any) -> dict[str, Any]:
    """Returns the metadata of a reduced vocabulary with more tokens, by type, and other `fields`."""
    metadata = reduced_metadata(name) | {T + key: value for key, value in fields.items()}
    metadata[T + "tokens"] += tokens
    metadata[T + "token_type"] += tokens.values()
    if T + "scores" in metadata:
        metadata[T + "scores"] += [0.0] * len(tokens)
    return metadata


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("gpt-2", {}, ["Hello"]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, ["<|endoftext|>", "Hello", "<|endoftext|>"]),
        ("llama-bpe", {}, ["<|begin_of_text|>", "Hello"]),
        ("llama-bpe", {"add_bos_token": False}, ["Hello"]),
        ("llama-spm", {}, ["<s>", "▁Hello"]),
        ("llama-spm", {"add_bos_token": False, "add_eos_token": True}, ["▁Hello", "</s>"]),
        ("llama-spm", {"add_space_prefix": False}, ["<s>", "Hello"]),
        ("gemma-4", {"add_bos_token": False}, ["<bos>", "Hello"]),
        ("bert-bge", {}, ["[CLS]", "hello", "[SEP]"]),
        ("bert-bge", {"normalizer.lowercase": False}, ["[CLS]", "[UNK]", "[SEP]"]),
    ],
)
def test_tokens_around_a_text(name: str, fields: dict[str, bool], expected: list[str], tmp_path: Path) -> None:
    """A missing add_bos_token is true for some tokenizers; Gemma 4 always has the token."""
    metadata = reduced_metadata(name)
    if not fields:
        metadata.pop(T + "add_bos_token", None)
    metadata |= {T + key: value for key, value in fields.items()}
    tokenizer = tokenizer_of(metadata, tmp_path)
    assert tokenizer.encode("Hello").tokens == expected
    words = [token for token in expected if token.lower().strip("▁") in ("hello", "[unk]")]
    assert tokenizer.encode("Hello", add_special_tokens=False).tokens == words


def test_a_pair_of_texts(tmp_path: Path) -> None:
    encoding = tokenizer_of(reduced_metadata("bert-bge"), tmp_path).encode("Hello", "world")
    assert encoding.tokens == ["[CLS]", "hello", "[SEP]", "world", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 1, 1]


def test_a_chat_that_begins_with_the_bos_token_has_it_once(tmp_path: Path) -> None:
    """The tokens of a chat are those that its template writes."""
    tokenizer = tokenizer_of(reduced_metadata("llama-spm"), tmp_path)
    bos = read_chat_files(str(tmp_path)).special_tokens["bos_token"]
    assert tokenizer.encode(f"{bos}Hello", add_special_tokens=False).tokens == ["<s>", "▁Hello"]


def test_control_tokens_are_special_and_defined_ones_are_text(tmp_path: Path) -> None:
    types = {"<|call_me|>": TokenType.CONTROL, "<tool>": TokenType.USER_DEFINED, "<|im_end|>": TokenType.NORMAL}
    tokenizer = tokenizer_of(with_tokens("gpt-2", types), tmp_path)
    ids = tokenizer.encode("Hello<|call_me|><tool><|im_end|>Hello").ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "Hello<|call_me|><tool><|im_end|>Hello"
    assert tokenizer.decode(ids) == "Hello<tool>Hello"
    assert len(ids) == 5


def test_tokens_with_names_are_those_of_the_file(tmp_path: Path) -> None:
    """A padding token that is ordinary text, as some files have it, must not become a special token."""
    metadata: dict[str, Any] = reduced_metadata("gpt-2") | {T + "padding_token_id": 0}
    tokenizer = tokenizer_of(metadata, tmp_path)
    assert metadata[T + "tokens"][0] == "!"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert (config["eos_token"], config.get("pad_token")) == ("<|endoftext|>", None)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    assert {token.content for token in named_tokens(tmp_path)} == added == {"<|endoftext|>"}


def test_the_marks_of_a_gap_have_names(tmp_path: Path) -> None:
    metadata = with_tokens("gpt-2", dict.fromkeys(("<pre>", "<suf>", "<mid>"), TokenType.CONTROL))
    first = len(metadata[T + "tokens"]) - 3
    ids = {T + f"fim_{part}_token_id": first + index for index, part in enumerate(("pre", "suf", "mid"))}
    write_tokenizer(metadata | ids, tmp_path)
    named = read_chat_files(str(tmp_path)).special_tokens
    assert [named[f"fim_{part}_token"] for part in ("pre", "suf", "mid")] == ["<pre>", "<suf>", "<mid>"]


def test_tokens_of_phi_3_drop_the_blanks_after_them(tmp_path: Path) -> None:
    metadata = with_tokens("llama-spm", {"<|end|>": TokenType.CONTROL}) | {"general.name": "Phi3"}
    tokenizer = tokenizer_of(metadata, tmp_path)
    tokens = [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode("<|end|>\n Hello").ids]
    assert tokens == ["<s>", "<|end|>", "▁Hello"]


def test_runs_of_spaces_grow_from_the_left(tmp_path: Path) -> None:
    """Their pieces have equal scores, of which SentencePiece merges the leftmost: 19 spaces are 16 and 3."""
    runs = {"▁" * count: TokenType.NORMAL for count in range(2, 17)}
    metadata = reduced_metadata("llama-spm")
    known = set(metadata[T + "tokens"])
    metadata = with_tokens("llama-spm", {run: kind for run, kind in runs.items() if run not in known})
    is_run = [set(token) == {"▁"} and len(token) > 1 for token in metadata[T + "tokens"]]
    metadata[T + "scores"] = [-1e9 if run else score for run, score in zip(is_run, metadata[T + "scores"], strict=True)]
    tokenizer = tokenizer_of(metadata | {T + "add_space_prefix": False}, tmp_path)
    assert tokenizer.encode(" " * 19, add_special_tokens=False).tokens == ["▁" * 16, "▁" * 3]


def test_unigrams(tmp_path: Path) -> None:
    tokens = {"<pad>": 3, "</s>": 3, "<unk>": 2, "▁": 1, "▁Hel": 1, "lo": 1, "▁Hello": 1, "H": 1, "e": 1, "l": 1}
    metadata: dict[str, Any] = {
        T + "model": "t5",
        T + "tokens": list(tokens),
        T + "token_type": list(tokens.values()),
        T + "scores": [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -5.0, -4.0, -4.0, -4.0],
        T + "remove_extra_whitespaces": True,
    }
    tokenizer = tokenizer_of(metadata, tmp_path)
    assert tokenizer.encode("  Hello   Helx ").tokens == ["▁Hello", "▁Hel", "x", "</s>"]
    assert tokenizer.decode(tokenizer.encode("Hello Hello").ids) == "Hello Hello"


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("gpt-2", {"model": None}, "tokenizer.ggml.model is missing"),
        ("gpt-2", {"model": "rwkv"}, "'rwkv': this kind of tokenizer cannot be read .*--tokenizer"),
        ("gpt-2", {"model": ["gpt2"]}, "cannot be read"),
        ("gpt-2", {"pre": "klingon"}, "tokenizer.ggml.pre is 'klingon', which is unknown here.*--tokenizer"),
        ("gpt-2", {"pre": None}, "tokenizer.ggml.pre is missing.*--tokenizer"),
        ("gpt-2", {"tokens": []}, "tokens: has no tokens"),
        ("gpt-2", {"tokens": None}, "tokens: is missing"),
        ("gpt-2", {"tokens": "Hello"}, "tokens: is a str, not a list"),
        ("gpt-2", {"tokens": ["a", b"\xff"], "token_type": [1, 1]}, r"tokens: entry 1 is b'\\xff'"),
        ("gpt-2", {"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "tokens 0 and 2 are the same: 'a'"),
        ("gpt-2", {"token_type": [1]}, r"token_type: has 1 entries for \d+ tokens"),
        ("gpt-2", {"merges": None}, "merges: is missing"),
        ("gpt-2", {"eos_token_id": "x" * 999}, r"eos_token_id: 'x{60}…' is not the id of a token"),
        ("gpt-2", {"model": "x" * 999}, "tokenizer.ggml.model is 'x{60}…': this kind"),
        ("gpt-2", {"pre": "x" * 999}, "tokenizer.ggml.pre is 'x{60}…', which is unknown"),
        ("gpt-2", {"tokens": ["x" * 1025], "token_type": [1]}, "token 0 has 1025 characters; the limit is 1024"),
        ("gpt-2", {"add_bos_token": 1}, "add_bos_token: is 1, not true or false"),
        ("gpt-2", {"bos_token_id": None, "add_bos_token": True}, "bos_token_id: is missing"),
        ("llama-spm", {"scores": None}, "scores: is missing"),
        ("llama-spm", {"scores": [0.0]}, r"scores: has 1 entries for \d+ tokens"),
    ],
)
def test_damaged_metadata(name: str, fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    metadata = reduced_metadata(name) | {T + key: value for key, value in fields.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(BootError, match=words):
        write_tokenizer(metadata, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_llama_cpp_does_not_use_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Merges that make no token, and special tokens outside the vocabulary."""
    metadata = reduced_metadata("gpt-2") | {T + "bos_token_id": 1 << 20, T + "eos_token_id": -1}
    tokenizer = tokenizer_of(metadata | {T + "merges": ["H e", "Q Z", "He", "H \u0120", " "]}, tmp_path)
    assert tokenizer.encode("He").tokens == ["He"]
    assert read_chat_files(str(tmp_path)).special_tokens == {}
    assert "4 merges do not make a token of two tokens and are not used: 'Q Z'" in caplog.text
    assert "bos_token_id is 1048576, which is none of the" in caplog.text


def test_pieces_within_pieces_are_bounded(tmp_path: Path) -> None:
    """The pairs that make a piece grow with the square of the pieces that begin each other."""
    tokens = ["<unk>", "<s>", "</s>", *("a" * count for count in range(1, 1025))]
    metadata = {T + "model": "llama", T + "tokens": tokens, T + "scores": [-float(i) for i in range(len(tokens))]}
    with pytest.raises(BootError, match=r"tokens: have too many other tokens within them"):
        write_tokenizer(metadata, tmp_path)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number(score: float, tmp_path: Path) -> None:
    metadata = reduced_metadata("llama-spm")
    metadata[T + "scores"][9] = score
    with pytest.raises(BootError, match=f"scores: token 9 .* has the score {score}"):
        write_tokenizer(metadata, tmp_path)


def test_scores_that_do_not_order_the_merges(tmp_path: Path) -> None:
    """As in files that were converted without the model's SentencePiece file."""
    metadata = reduced_metadata("llama-spm")
    metadata[T + "scores"] = [-1000.0] * len(metadata[T + "tokens"])
    with pytest.raises(BootError, match=r"all .* have the same score.*--tokenizer"):
        write_tokenizer(metadata, tmp_path)
