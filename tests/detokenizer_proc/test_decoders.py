import json
from codecs import utf_8_decode
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders

from detokenizer_proc.decoders import ByteLevelDecoder, CountingDecoder, Decoder, PieceDecoder, WindowDecoder
from detokenizer_proc.logprobs import read_prompt
from detokenizer_proc.vocabulary import Vocabulary, byte_level_alphabet, vocabulary_of
from messages.ring.replies import NUM_CONTEXT_TOKENS
from tests.conftest import SHARED
from tests.detokenizer_proc.tiny_tokenizers import BYTE_TOKENS, characters, llama, make_tokenizer
from tests.token_vectors import NAMES, read_vectors

REAL = ("tokenizers/gpt2", "tokenizers/qwen2", "models/tinystories-656k-llama", "models/nano-shakespeare-gpt2")
WORDS = ("▁", "▁a", "a▁b", "b", " ", "x y", "é", "▁▁c")
METASPACE = {scheme: decoders.Metaspace(prepend_scheme=scheme) for scheme in ("always", "first", "never")}

PIECE_TOKENIZERS = {
    "characters": characters(),
    "llama": llama(),
    "gemma": make_tokenizer(
        WORDS + BYTE_TOKENS,
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        special=("<bos>",),
    ),
    "two replacements, two stripped": make_tokenizer(
        WORDS,
        decoders.Sequence(
            [decoders.Replace("a", "▁▁"), decoders.Replace("▁", "b"), decoders.Fuse(), decoders.Strip("b", 2, 0)]
        ),
    ),
    "nested": make_tokenizer(
        WORDS + BYTE_TOKENS,
        decoders.Sequence([decoders.Sequence([METASPACE["always"], decoders.ByteFallback()]), decoders.Fuse()]),
        special=("<s>",),
    ),
    **{
        f"metaspace {scheme}": make_tokenizer(WORDS, decoder, special=("▁<s>",))
        for scheme, decoder in METASPACE.items()
    },
}
OTHER_TOKENIZERS = {
    "no decoder": make_tokenizer(WORDS, None, special=("<s>",)),
    "WordPiece": make_tokenizer(("a", "##b", "c", "##'", ".", "n't"), decoders.WordPiece(), special=("[SEP]",)),
    "BPE": make_tokenizer(("a</w>", "b", "c</w>", "d"), decoders.BPEDecoder()),
    "CTC": make_tokenizer(("a", "b", "|", "c"), decoders.CTC(), special=("<pad>",)),
    "strip at the end": make_tokenizer(
        WORDS, decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    ),
    "regex": make_tokenizer(WORDS, decoders.Sequence([decoders.Replace(Regex("a|▁"), " "), decoders.Fuse()])),
    "byte level and more": make_tokenizer(
        tuple(byte_level_alphabet()),
        decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), decoders.Strip("x", 1, 0)]),
    ),
}


@cache
def real_tokenizer(name: str) -> Tokenizer:
    file = SHARED / name / "tokenizer.json"
    if not file.is_file():
        pytest.skip("needs ../shared (real tokenizers) beside the checkout")
    return Tokenizer.from_file(str(file))


@cache
def real_vocabulary(name: str) -> Vocabulary:
    return vocabulary_of(real_tokenizer(name), real_tokenizer(name).get_vocab_size() + 10)


def increments_of(decoder: Decoder, ids: list[int]) -> list[str]:
    return [*(decoder.push(token_id) for token_id in ids), decoder.finish()]


def check_is_full_decode(tokenizer: Tokenizer, vocabulary: Vocabulary, ids: list[int]) -> None:
    for skip_special_tokens in (True, False):
        increments = increments_of(vocabulary.open_decoder(skip_special_tokens), ids)
        assert "".join(increments) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_random_ids_of_real_tokenizers(name: str, data: st.DataObject) -> None:
    tokenizer, size = real_tokenizer(name), real_tokenizer(name).get_vocab_size()
    any_id = st.integers(0, size - 1) | st.integers(max(0, size - 3), size + 9) | st.integers(0, min(size, 260) - 1)
    check_is_full_decode(tokenizer, real_vocabulary(name), data.draw(st.lists(any_id, max_size=24)))


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL[:2])
@settings(max_examples=80, deadline=None)
@given(data=st.binary(max_size=16) | st.text(max_size=8).map(str.encode))
def test_any_bytes_of_real_byte_level_tokenizers(name: str, data: bytes) -> None:
    tokenizer = real_tokenizer(name)
    alphabet = byte_level_alphabet()
    ids = [tokenizer.token_to_id(alphabet[byte]) for byte in data]
    check_is_full_decode(tokenizer, real_vocabulary(name), ids)
    assert tokenizer.decode(ids) == data.decode(errors="replace")


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_vectors_come_back_in_whole_characters(name: str) -> None:
    for text, ids in read_vectors(name):
        increments = increments_of(real_vocabulary(name).open_decoder(True), ids)
        assert "".join(increments) == real_tokenizer(name).decode(ids)
        assert not any("\ufffd" in increment for increment in increments), text
        assert increments[-1] == "", "a text of whole characters leaves nothing for the end"


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL[2:])
def test_texts_of_the_golden_runs(name: str) -> None:
    decoder_of = real_vocabulary(name).open_decoder
    for case in json.loads((SHARED / name / "golden.json").read_text(encoding="utf-8"))["cases"]:
        assert "".join(increments_of(decoder_of(True), case["output_ids"])) == case["output_text"]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "kind"),
    [(REAL[0], ByteLevelDecoder), (REAL[1], ByteLevelDecoder), (REAL[2], PieceDecoder), (REAL[3], PieceDecoder)],
)
def test_real_tokenizers_need_no_window(name: str, kind: type) -> None:
    assert isinstance(real_vocabulary(name).open_decoder(True), kind)


@pytest.mark.parametrize("name", PIECE_TOKENIZERS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_random_ids_of_pieces(name: str, data: st.DataObject) -> None:
    tokenizer = PIECE_TOKENIZERS[name]
    vocabulary = vocabulary_of(tokenizer, tokenizer.get_vocab_size() + 3)
    assert isinstance(vocabulary.open_decoder(True), PieceDecoder)
    any_id = st.integers(0, tokenizer.get_vocab_size() + 2) | st.integers(0, 10)
    check_is_full_decode(tokenizer, vocabulary, data.draw(st.lists(any_id, max_size=12)))


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.text(max_size=3) | st.binary(min_size=1, max_size=3) | st.none(), max_size=5))
def test_byte_runs_between_words(texts: list[str | bytes | None]) -> None:
    """`None` is a special token, which ends a run only if it is shown."""
    tokenizer = PIECE_TOKENIZERS["llama"]
    ids: list[int] = []
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        ids += [tokenizer.token_to_id("<s>")] if data is None else [tokenizer.token_to_id(BYTE_TOKENS[b]) for b in data]
        ids += [tokenizer.token_to_id("b")] if isinstance(text, str) else []
    check_is_full_decode(tokenizer, vocabulary_of(tokenizer, tokenizer.get_vocab_size()), ids)


@pytest.mark.parametrize("name", OTHER_TOKENIZERS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_random_ids_of_unknown_decoders(name: str, data: st.DataObject) -> None:
    tokenizer = OTHER_TOKENIZERS[name]
    vocabulary = vocabulary_of(tokenizer, tokenizer.get_vocab_size() + 1)
    assert isinstance(vocabulary.open_decoder(True), WindowDecoder)
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size()), max_size=6 * NUM_CONTEXT_TOKENS))
    check_is_full_decode(tokenizer, vocabulary, [0, *ids])  # the library's Strip panics on empty text


def test_a_window_forgets_old_tokens() -> None:
    tokenizer = OTHER_TOKENIZERS["WordPiece"]
    lengths: list[int] = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return tokenizer.decode(ids)

    assert "".join(increments_of(WindowDecoder(decode, frozenset()), [0, 1, 2] * 300)) == " ".join(["ab c"] * 300)
    assert max(lengths) <= 2 * NUM_CONTEXT_TOKENS


def test_a_window_does_not_hold_broken_text_for_ever() -> None:
    tokenizer = OTHER_TOKENIZERS["byte level and more"]
    continuation_byte = tokenizer.token_to_id(byte_level_alphabet()[0x80])
    decoder = vocabulary_of(tokenizer, 256).open_decoder(True)
    num_shown = len("".join(decoder.push(continuation_byte) for _ in range(1000)))
    assert num_shown > 1000 - 4 * NUM_CONTEXT_TOKENS


def test_a_character_is_shown_when_its_last_byte_is_there_and_not_before() -> None:
    pieces = ["a", *(bytes([byte]) for byte in "é€😀".encode())]
    decoder = ByteLevelDecoder(pieces, frozenset())
    assert increments_of(decoder, [0, *range(1, 10), 0]) == ["a", "", "é", "", "", "€", "", "", "", "😀", "a", ""]


def test_a_broken_character_is_shown_as_soon_as_it_cannot_be_completed() -> None:
    decoder = ByteLevelDecoder(["a", b"\xf0\x9f", b"\x98", b"\xff", ""], frozenset())
    assert increments_of(decoder, [1, 4, 0, 1, 2, 1, 3, 1]) == [
        "",
        "",
        "\ufffda",
        "",
        "",
        "\ufffd",
        "\ufffd\ufffd",
        "",
        "\ufffd",
    ]


def test_words_are_not_held_back() -> None:
    tokenizer = PIECE_TOKENIZERS["llama"]
    decoder = vocabulary_of(tokenizer, tokenizer.get_vocab_size()).open_decoder(True)
    ids = [tokenizer.token_to_id(token) for token in ("▁a", "b", "<0xC3>", "<0xA9>", "b", "▁", "</s>", "▁a")]
    assert increments_of(decoder, ids) == ["a", "b", "", "", "éb", " ", "", " a", ""]


def char_of_each_byte(data: bytes) -> list[int]:
    """Returns the index of the character that each byte belongs to; a broken part counts as a character."""
    chars: list[int] = []
    while len(chars) < len(data):
        start, index = len(chars), (chars[-1] + 1 if chars else 0)
        num_bytes = 1
        for end in range(start + 1, min(start + 4, len(data)) + 1):
            try:
                text, _ = utf_8_decode(data[start:end], "strict", False)
            except UnicodeDecodeError:
                break
            if data[start] == 0xED and end - start == 2 and data[start + 1] >= 0xA0:
                break  # a surrogate, invalid from here on although Python waits for its third byte
            num_bytes = end - start
            if text:
                break
        chars += [index] * num_bytes
    return chars


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=4), data=st.data())
def test_where_tokens_of_any_bytes_begin(text: str, data: st.DataObject) -> None:
    garbled = bytearray(text.encode())
    for position in data.draw(st.lists(st.integers(0, max(0, len(garbled) - 1)), max_size=2)) if garbled else []:
        garbled[position] = data.draw(st.integers(0, 255))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(garbled)))) | {0, len(garbled)})
    tokens = [bytes(garbled[start:end]) for start, end in pairwise(cuts)]
    pieces = [token.decode() if token.decode(errors="ignore").encode() == token else token for token in tokens]
    decoder = CountingDecoder(ByteLevelDecoder(pieces, frozenset()))
    offsets: list[int] = []
    for token_id in range(len(tokens)):
        offsets.append(decoder.offset_of(token_id))
        decoder.push(token_id)
    chars = char_of_each_byte(bytes(garbled))
    assert offsets == [chars[cut] for cut in cuts[:-1]]
    assert len(set(chars)) == len(garbled.decode(errors="replace"))


@pytest.mark.parametrize("num_bytes", range(1, 13))
def test_what_a_prompt_of_bytes_leaves_for_the_output(num_bytes: int) -> None:
    """Complete characters belong to the prompt, an incomplete one to the output."""
    tokenizer = PIECE_TOKENIZERS["llama"]
    ids = [tokenizer.token_to_id(BYTE_TOKENS[byte]) for byte in "é€😀日".encode()]
    decoder = vocabulary_of(tokenizer, tokenizer.get_vocab_size()).open_decoder(True)
    prompt_text = read_prompt(decoder, ids[:num_bytes])
    assert prompt_text == bytes("é€😀日".encode()[:num_bytes]).decode(errors="ignore")
    assert prompt_text + "".join(increments_of(decoder, ids[num_bytes:])) == "é€😀日"


def test_a_prompt_of_broken_bytes_still_leaves_the_last_beginning() -> None:
    tokenizer = PIECE_TOKENIZERS["llama"]
    ids = [tokenizer.token_to_id(BYTE_TOKENS[byte]) for byte in b"\xff\xa9\xe2\x82"]
    decoder = vocabulary_of(tokenizer, tokenizer.get_vocab_size()).open_decoder(True)
    assert read_prompt(decoder, ids) == "\ufffd\ufffd"
    assert increments_of(decoder, [tokenizer.token_to_id("<0xAC>")]) == ["", "€"]
