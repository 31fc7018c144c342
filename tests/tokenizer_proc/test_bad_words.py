import pytest

from messages.columns import pack_int32
from messages.errors import RequestError
from tests.conftest import SHARED
from tests.tokenizer_proc.parts import encoding_of
from tokenizer_proc.encoding import Encoding, load_encoding
from tokenizer_proc.parameter_texts import bad_word_ids

WORDS = {"bad": 1, " bad": 2, "ba": 3, " ba": 4, "d": 5, " ": 6, "x": 7, "b": 8, "a": 9, "y": 300}


def encode_greedily(text: str) -> list[int]:
    """Encodes the longest matching word first."""
    ids: list[int] = []
    while text:
        word = max((word for word in WORDS if text.startswith(word)), key=len)
        ids.append(WORDS[word])
        text = text[len(word) :]
    return ids


ENCODING = encoding_of(encode_greedily)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), []),
        (("bad",), [[1], [2]]),
        (("  bad",), [[1], [2]]),
        (("x",), [[7]]),
        (("dad",), [[5, 9, 5]]),
        (("bax",), [[3, 7], [4, 7]]),
        (("bad", "bad", "x"), [[1], [2], [7]]),
    ],
)
def test_a_word_alone_and_after_a_space(words: tuple[str, ...], expected: list[list[int]]) -> None:
    assert list(bad_word_ids(words, ENCODING, 256)) == [pack_int32(ids) for ids in expected]


@pytest.mark.parametrize("word", ["", "  ", "xy"])
def test_a_word_without_tokens_of_the_model(word: str) -> None:
    with pytest.raises(RequestError) as raised:
        bad_word_ids(("x", word), ENCODING, 256)
    assert (raised.value.info.status, raised.value.info.param) == (400, "bad_words")


@pytest.mark.shared
@pytest.mark.parametrize(("name", "num_forms"), [("tokenizers/gpt2", 2), ("models/tinystories-656k-llama", 1)])
def test_words_of_real_tokenizers(name: str, num_forms: int) -> None:
    """A tokenizer that adds a space before every text has only one form."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real tokenizers) beside the checkout")
    encoding: Encoding = load_encoding(str(SHARED / name))
    sequences = bad_word_ids(("time",), encoding, 60_000)
    assert len(sequences) == num_forms
    assert pack_int32(encoding.encode("time", add_special_tokens=False)) in sequences
