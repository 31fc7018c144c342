import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers  # imports torch, which the code below must not do
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from detokenizer_proc.decoders import ByteLevelDecoder, Decoder
from detokenizer_proc.vocabulary import byte_level_alphabet, load_vocabulary, vocabulary_of
from messages.errors import BootError
from runtime import tokenizer_files
from tests.detokenizer_proc.tiny_tokenizers import characters


@pytest.fixture(autouse=True)
def keep_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes the effects on this process of loading a tokenizer without tokenizer.json."""
    assert transformers.is_torch_available()
    assert transformers.AutoTokenizer is not None  # it is imported when first named, and then looks for torch again
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))
    monkeypatch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", "")


def text_of(decoder: Decoder, ids: list[int]) -> str:
    return "".join(decoder.push(token_id) for token_id in ids) + decoder.finish()


def test_the_alphabet_is_that_of_the_library() -> None:
    assert sorted(byte_level_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())


def test_ids_without_a_token_stand_for_nothing(tmp_path: Path) -> None:
    characters("ab").save(str(tmp_path / "tokenizer.json"))
    assert text_of(load_vocabulary(str(tmp_path), 50).open_decoder(True), [0, 49, 1, 3, 2]) == "ab"


def test_special_tokens_are_those_of_the_tokenizer() -> None:
    assert vocabulary_of(characters("ab"), 50).special_ids == {2}


def test_an_added_token_of_a_letter_in_the_alphabet_of_bytes() -> None:
    """DeepSeek's tokenizers have such tokens. The library takes the letter for a byte, and returns U+FFFD."""
    alphabet = byte_level_alphabet()
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_tokens(["ü"])
    ids = tokenizer.encode("über").ids
    assert text_of(vocabulary_of(tokenizer, 300).open_decoder(True), ids) == "über"


def test_vocabulary_and_merges_without_a_tokenizer_json(tmp_path: Path) -> None:
    alphabet = byte_level_alphabet()
    models.BPE({char: i for i, char in enumerate(alphabet)}, []).save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="ascii")
    decoder = load_vocabulary(str(tmp_path), 256).open_decoder(True)
    assert isinstance(decoder, ByteLevelDecoder)
    assert text_of(decoder, list("né\n".encode())) == "né\n"


def test_a_backend_of_another_kind_is_not_taken_for_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vocab.json").write_text("{}", encoding="ascii")
    loaded = SimpleNamespace(backend_tokenizer=object())
    library = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=lambda *_, **__: loaded))
    monkeypatch.setattr(tokenizer_files, "import_transformers", lambda: library)
    assert tokenizer_files.load_tokenizer(str(tmp_path), lambda _: None, lambda found: found) is loaded


@pytest.mark.parametrize(("skip_special_tokens", "text"), [(True, "hé€ " * 20), (False, "hé€ </s>" * 20)])
def test_a_tokenizer_that_is_python_code(tmp_path: Path, skip_special_tokens: bool, text: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}', encoding="ascii")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}', encoding="ascii")
    decoder = load_vocabulary(str(tmp_path), 400).open_decoder(skip_special_tokens)
    ids = [*(byte + 3 for byte in "hé€ ".encode()), 1]
    assert text_of(decoder, [*ids * 20, 399]) == text


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(BootError, match=rf"{tmp_path} has no tokenizer.json, nor any of .*--tokenizer"):
        load_vocabulary(str(tmp_path), 50)


def test_a_vocabulary_of_any_model_kind_is_read() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁hi", -1.0), ("▁", -2.0)], 0, False))
    assert text_of(vocabulary_of(tokenizer, 3).open_decoder(True), [1, 2, 1]) == tokenizer.decode([1, 2, 1])
