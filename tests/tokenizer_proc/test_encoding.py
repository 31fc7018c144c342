import json
import sys
from functools import cache
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from messages.errors import BootError
from tests.conftest import SHARED
from tests.token_vectors import NAMES, read_vectors
from tokenizer_proc.encoding import Encoding, load_encoding

REAL = ("tokenizers/gpt2", "tokenizers/qwen2", "models/tinystories-656k-llama", "models/nano-shakespeare-gpt2")
TEXTS = (
    "Once upon a time, there was a little boy named Tim. Tim ",
    "To be, or not to be: that is the question",
    "",
    " two  spaces   and a newline\n\n",
    "<|endoftext|>Hi<|im_end|>\n<|start_story|>x<unk>",
    "Äpfel, naïve café, 日本語, 👩‍👩‍👧 e\u0301",
    "tab\tnull\x00bell\x07 \ufffd \u2028",
)


@cache
def real_encoding(name: str) -> Encoding:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real tokenizers) beside the checkout")
    return load_encoding(str(SHARED / name))


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_ids_are_those_of_transformers_for_the_same_file(name: str) -> None:
    encoding = real_encoding(name)
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(SHARED / name / "tokenizer.json"))
    for text in TEXTS:
        assert encoding.encode(text) == reference(text).input_ids, text


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_ids_are_those_of_transformers_for_the_model(name: str) -> None:
    """TinyStories gets plain words only: transformers 5 rebuilds Llama tokenizers and then drops unknown letters."""
    encoding = real_encoding(name)
    reference = transformers.AutoTokenizer.from_pretrained(SHARED / name)
    for text in TEXTS[:2] if "tinystories" in name else TEXTS:
        assert encoding.encode(text) == reference(text).input_ids, text


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL[2:])
def test_prompts_of_the_golden_runs(name: str) -> None:
    encoding = real_encoding(name)
    for case in json.loads((SHARED / name / "golden.json").read_text(encoding="utf-8"))["cases"]:
        assert encoding.encode(case["prompt"]) == case["prompt_ids"]


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_vectors(name: str) -> None:
    encoding = real_encoding(name)
    for text, ids in read_vectors(name):
        assert encoding.encode(text) == ids, text


@pytest.mark.shared
@pytest.mark.parametrize(("name", "longest"), [("tokenizers/gpt2", 128), ("models/nano-shakespeare-gpt2", 1)])
def test_the_longest_token(name: str, longest: int) -> None:
    assert real_encoding(name).longest_token_chars == longest


def byte_level_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate([*alphabet, "Ġh"])}, [("Ġ", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_a_file_that_asks_to_cut_or_pad_is_not_obeyed(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    expected = tokenizer.encode("one two three h").ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_encoding(str(tmp_path)).encode("one two three h") == expected


@pytest.fixture
def keep_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes the effects on this process of loading a tokenizer without tokenizer.json."""
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))
    monkeypatch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", "")


@pytest.mark.usefixtures("keep_torch")
def test_vocabulary_and_merges_without_a_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="ascii")
    encoding = load_encoding(str(tmp_path))
    assert encoding.encode("oh h") == tokenizer.encode("oh h").ids
    assert encoding.longest_token_chars >= 2


@pytest.mark.usefixtures("keep_torch")
def test_a_tokenizer_that_is_python_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}', encoding="ascii")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}', encoding="ascii")
    encoding = load_encoding(str(tmp_path))
    ids = [ord("h") + 3, 0xC3 + 3, 0xA9 + 3]
    assert encoding.encode("hé") == [*ids, 1]
    assert encoding.encode("hé", add_special_tokens=False) == ids
    assert encoding.to_text([*ids, 1]) == "hé</s>"
    assert [encoding.token_of(token_id) for token_id in (*ids[:1], 1, 10**6)] == ["h", "</s>", None]


@pytest.mark.usefixtures("keep_torch")
def test_code_next_to_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}', encoding="ascii")
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="ascii")
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\nclass Own: pass\n", encoding="ascii")
    with pytest.raises(BootError):
        load_encoding(str(tmp_path))
    assert not (tmp_path / "was_run").exists()


@pytest.mark.usefixtures("keep_torch")
def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(BootError, match=rf"{tmp_path} has no tokenizer.json, nor any of vocab.json, .*--tokenizer"):
        load_encoding(str(tmp_path))
    # A model without a tokenizer: transformers would make one with an empty vocabulary.
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="ascii")
    with pytest.raises(BootError, match=r"has no tokenizer.json"):
        load_encoding(str(tmp_path))


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(BootError, match=r"nowhere does not exist.*--tokenizer"):
        load_encoding(str(tmp_path / "nowhere"))


def test_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version":', encoding="ascii")
    with pytest.raises(BootError, match=r"tokenizer.json cannot be read"):
        load_encoding(str(tmp_path))


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_text_and_tokens_of_ids(name: str) -> None:
    encoding = real_encoding(name)
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(SHARED / name / "tokenizer.json"))
    for text in TEXTS:
        ids = encoding.encode(text)
        assert encoding.to_text(ids) == reference.decode(ids), text
        assert [encoding.token_of(token_id) for token_id in ids] == reference.convert_ids_to_tokens(ids)
    assert encoding.token_of(10**6) is None


def bos_tokenizer() -> Tokenizer:
    """A tokenizer of words with a start token, which its post-processor adds."""
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "one": 1, "two": 2}, unk_token="<s>"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def test_special_tokens_are_added_only_where_they_are_requested(tmp_path: Path) -> None:
    bos_tokenizer().save(str(tmp_path / "tokenizer.json"))
    encoding = load_encoding(str(tmp_path))
    assert encoding.encode("one two") == [0, 1, 2]
    assert encoding.encode("one two", add_special_tokens=False) == [1, 2]
    assert encoding.encode("<s> one", add_special_tokens=False) == [0, 1]
    assert encoding.to_text([0, 1]) == "<s> one"
