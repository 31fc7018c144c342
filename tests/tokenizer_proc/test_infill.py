"""Prompts to fill in the middle of a text, against the prompts that the families' documents show."""

from pathlib import Path

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from messages.errors import RequestError
from messages.ring.infill import ExtraFile, Infill
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from tests.tokenizer_proc.parts import encoding_of
from tokenizer_proc.encoding import Encoding, load_encoding
from tokenizer_proc.image_prompts import PromptText
from tokenizer_proc.infill import InfillEncoder
from tokenizer_proc.prompts import PromptReader

BUNDLED = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2" / "tokenizer.json"
PREFIX, SUFFIX = "def add(a, b):\n    ", "\n\nprint(add(1, 2))  # naïve\n"
FILES = (ExtraFile("one.py", "ONE = 1\n"), ExtraFile("two.py", "TWO = 2\n"))
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")

DOCUMENTED: dict[str, tuple[tuple[str, ...], str]] = {
    "Qwen2.5-Coder": (QWEN, "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"),
    "CodeGemma": (
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"),
        "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    ),
    "StarCoder": (STARCODER, "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>"),
    "SantaCoder": (
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
        "<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>",
    ),
    "DeepSeek-Coder": (
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        "<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",
    ),
    "GLM-4.5": (
        ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>",
    ),
    "Seed-Coder": (
        ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
        "<[fim-suffix]>{suffix}<[fim-prefix]>{prefix}<[fim-middle]>",
    ),
    "Devstral": (("[PREFIX]", "[MIDDLE]", "[SUFFIX]"), "[SUFFIX]{suffix}[PREFIX]{prefix}"),
}
"""Tokens and prompts of the model cards."""


def tokenizer_with(tokens: tuple[str, ...], file: Path = BUNDLED) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    return tokenizer


def encoding_with(folder: Path, tokenizer: Tokenizer) -> Encoding:
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_encoding(str(folder))


def infill(suffix: str = SUFFIX, *files: ExtraFile) -> Infill:
    return Infill(suffix, "suffix", files)


@pytest.mark.parametrize("family", DOCUMENTED)
@pytest.mark.parametrize(("prefix", "suffix"), [(PREFIX, SUFFIX), ("", SUFFIX), (PREFIX, "")])
def test_prompts_are_those_of_the_model_cards(tmp_path: Path, family: str, prefix: str, suffix: str) -> None:
    tokens, documented = DOCUMENTED[family]
    tokenizer = tokenizer_with(tokens)
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer), {}, 512)
    expected = tokenizer.encode(documented.format(prefix=prefix, suffix=suffix)).ids
    assert encoder.encode(prefix, infill(suffix), True) == expected


def test_a_real_tokenizer_of_qwen(tmp_path: Path, shared_dir: Path) -> None:
    tokens = ("<|object_ref_start|>", *QWEN)
    tokenizer = tokenizer_with(tokens, shared_dir / "tokenizers/qwen2/tokenizer.json")
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer), {}, 512)
    text = (
        "<|repo_name|>myproject\n<|file_sep|>one.py\nONE = 1\n<|file_sep|>two.py\nTWO = 2\n<|file_sep|>filename\n"
        f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    )
    assert encoder.encode(PREFIX, infill(SUFFIX, *FILES), True) == tokenizer.encode(text).ids


def test_the_texts_of_marks_in_the_texts_are_plain_text(tmp_path: Path) -> None:
    """Such as in the source of this test."""
    tokenizer = tokenizer_with((*QWEN, "<|im_end|>"))
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer), {}, 512)
    prefix, suffix = 'MARKS = "<|fim_prefix|><|im_end|>"; OTHER = "<|fim_suffix|>"', '"<|file_sep|>'
    ids = encoder.encode(prefix, infill(suffix), True)
    marks = [tokenizer.token_to_id(mark) for mark in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")]
    special = set(tokenizer.get_added_tokens_decoder())
    assert [token_id for token_id in ids if token_id in special] == marks
    text = f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def sentence_pieces(tokens: tuple[str, ...]) -> Tokenizer:
    """A tokenizer that begins each text with a space, as SentencePiece does, and a prompt with <s>."""
    pieces = ["<unk>", "<s>", "▁def", "▁f(", "return", "▁return", "▁a", "▁+", "▁b"]
    pieces += ["▁", "☺", *"abcdefnrtu+()", *tokens]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(piece != "▁return")) for piece in pieces], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<s>", *tokens)])
    return tokenizer


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # tests/test_fim_tokenizer.py of mistral-common
        (("[PREFIX]", "[MIDDLE]", "[SUFFIX]"), "<s>[SUFFIX]return▁a▁+▁b[PREFIX]▁def▁f("),
        # infilling_prompt_tokens of Meta's codellama
        (("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"), "<s>▁<PRE>▁def▁f(▁<SUF>return▁a▁+▁b▁<MID>"),
    ],
    ids=["Codestral", "CodeLlama"],
)
def test_a_suffix_has_no_space_of_sentence_piece(tmp_path: Path, tokens: tuple[str, ...], expected: str) -> None:
    tokenizer = sentence_pieces(tokens)
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer), {}, 512)
    ids = encoder.encode("def f(", infill("return a + b"), True)
    assert "".join(tokenizer.id_to_token(token_id) for token_id in ids) == expected
    assert encoder.encode("def f(", infill("return a + b"), False) == ids[1:]


def test_without_tokens_for_files_they_are_snippets(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(STARCODER)
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer), {}, 512)
    text = (
        "\n\n--- snippet ---\n\nONE = 1\n\n\n--- snippet ---\n\nTWO = 2\n"
        f"<fim_prefix>{PREFIX}<fim_suffix>{SUFFIX}<fim_middle>"
    )
    ids = encoder.encode(PREFIX, infill(SUFFIX, *FILES), True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_first_files_are_left_out_if_there_is_no_room(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(QWEN)
    encoding = encoding_with(tmp_path, tokenizer)
    whole = len(InfillEncoder(encoding, {}, 1 << 20).encode(PREFIX, infill(SUFFIX, *FILES), True))
    found = set[tuple[str, ...]]()
    for max_model_len in range(1, 2 * whole):
        ids = InfillEncoder(encoding, {}, max_model_len).encode(PREFIX, infill(SUFFIX, *FILES), True)
        text = tokenizer.decode(ids, skip_special_tokens=False)
        found.add(tuple(file.name for file in FILES if file.text in text))
        assert text.endswith(f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>")
        assert len(ids) <= max(0.75 * max_model_len, len(encoder_core(encoding)))
    assert found == {(), ("two.py",), ("one.py", "two.py")}


def encoder_core(encoding: Encoding) -> list[int]:
    return InfillEncoder(encoding, {}, 1).encode(PREFIX, infill(), True)


def test_tokens_that_a_gguf_file_names(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(("<a>", "<b>", "<c>", "<d>", "<e>"))
    encoding = encoding_with(tmp_path, tokenizer)
    named = {"fim_pre_token": "<a>", "fim_suf_token": "<b>", "fim_mid_token": "<c>", "fim_sep_token": "<d>"}
    encoder = InfillEncoder(encoding, {**named, "fim_pad_token": "<e>"}, 512)
    ids = encoder.encode("P", infill("S", FILES[0]), True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<d>one.py\nONE = 1\n<d>filename\n<a>P<b>S<c>"
    ends = {tokenizer.token_to_id(token) for token in ("<a>", "<b>", "<c>", "<d>", "<e>")}
    assert ends <= set(encoder.with_ends(SamplingParams(4)).stop_token_ids)


def test_a_model_without_such_tokens_refuses(tmp_path: Path) -> None:
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer_with(STARCODER[:2])), {}, 512)
    with pytest.raises(RequestError, match="no tokens to fill in the middle") as raised:
        encoder.encode("P", infill("S"), True)
    assert (raised.value.info.status, raised.value.info.param) == (400, "suffix")


def message(**fields: object) -> TokenizeMsg:
    return TokenizeMsg(7, 0, PREFIX, b"", SamplingParams(8, stop_token_ids=(3,)), Stamps(), **fields)


def test_the_output_ends_at_the_marks_and_a_continuation_has_the_same_prompt(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(QWEN)
    reader = PromptReader(encoding_with(tmp_path, tokenizer), tokenizer.get_vocab_size(), 512)
    (first,) = reader.read(message(infill=infill()), PromptText(PREFIX), 1)
    (plain,) = reader.read(message(), PromptText(PREFIX), 1)
    (again,) = reader.read(message(infill=infill(), output_ids=b"\1\0\0\0"), PromptText(PREFIX), 1)
    ends = {3, *(tokenizer.token_to_id(token) for token in QWEN)}
    assert ends <= set(first.sampling_params.stop_token_ids)
    assert plain.sampling_params.stop_token_ids == (3,)
    assert first.input_ids == again.input_ids != plain.input_ids
    ignoring = msgspec.structs.replace(message(infill=infill()), sampling_params=SamplingParams(8, ignore_eos=True))
    (endless,) = reader.read(ignoring, PromptText(PREFIX), 1)
    assert endless.sampling_params.stop_token_ids == ()


def test_a_suffix_that_is_far_too_long_is_not_encoded() -> None:
    encoded: list[int] = []

    def encode(text: str) -> list[int]:
        encoded.append(len(text))
        return [*map(ord, text)]

    reader = PromptReader(encoding_of(encode), 256, 16)
    with pytest.raises(RequestError, match="maximum context length is 16 tokens"):
        list(reader.read(message(infill=infill("x" * 10_000)), PromptText(PREFIX), 1))
    assert not any(length > 1000 for length in encoded)


def test_marks_may_be_ordinary_tokens(tmp_path: Path) -> None:
    """As in the tokenizer.json of Qwen2.5-Coder, where they are added but not special."""
    tokenizer = Tokenizer.from_file(str(BUNDLED))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in QWEN])
    encoder = InfillEncoder(encoding_with(tmp_path, tokenizer), {}, 512)
    ids = encoder.encode("<|fim_middle|>", infill(), True)
    assert ids.count(tokenizer.token_to_id("<|fim_middle|>")) == 1
