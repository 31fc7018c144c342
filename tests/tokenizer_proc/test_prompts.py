from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.columns import pack_int32, unpack_int32
from messages.errors import RequestError
from messages.ring.requests import ChatPrompt, SamplingParams, Sibling, Stamps, TokenizeMsg, Truncation, UserMsg
from messages.ring.spans import PromptSpan
from runtime.chat_files import PLAIN_TEMPLATE
from tests.tokenizer_proc.parts import chat, encoding_of, templates_of, user
from tokenizer_proc.encoding import MAX_ENCODED_CHARS
from tokenizer_proc.prompts import PromptReader

VOCAB_SIZE, MAX_MODEL_LEN, LONGEST = 256, 16, 4


def encode_letters(text: str) -> list[int]:
    """One token per letter, and per run of up to four spaces."""
    ids: list[int] = []
    rest = text
    while rest:
        num_spaces = min(len(rest) - len(rest.lstrip(" ")), LONGEST)
        ids.append(num_spaces or min(ord(rest[0]), 300))
        rest = rest[num_spaces or 1 :]
    return ids


class Reader(PromptReader):
    def __init__(self, encode: Callable[[str], list[int]], template: str):
        super().__init__(encoding_of(encode, LONGEST), VOCAB_SIZE, MAX_MODEL_LEN)
        self._templates = templates_of(template)

    def read_one(self, message: TokenizeMsg) -> UserMsg:
        """Returns the message of the first request."""
        return self.read_all(message)[0]

    def read_all(self, message: TokenizeMsg) -> list[UserMsg]:
        return [*self.read(message, self.text_of(message, self._templates.render), begun_ns=1)]


def reader_of(encode: Callable[[str], list[int]] = encode_letters, template: str = PLAIN_TEMPLATE) -> Reader:
    return Reader(encode, template)


def prompt(content: str | list[int], max_tokens: int = 5, **fields: object) -> TokenizeMsg:
    is_text = isinstance(content, str)
    return TokenizeMsg(
        uid=7,
        attempt=0,
        prompt_text=content if is_text else None,
        prompt_ids=b"" if is_text else pack_int32(content),
        sampling_params=SamplingParams(max_tokens=max_tokens, seed=3),
        stamps=Stamps(received_ns=1),
        **fields,
    )


def chat_message(content: ChatPrompt) -> TokenizeMsg:
    return msgspec.structs.replace(prompt([]), prompt_text=None, chat=content)


def refusal_of(content: str | list[int], reader: Reader | None = None) -> RequestError:
    with pytest.raises(RequestError) as raised:
        (reader or reader_of()).read_one(prompt(content))
    assert raised.value.info.status == 400
    assert raised.value.info.param == "prompt"
    return raised.value


def test_text_becomes_ids() -> None:
    message = reader_of().read_one(prompt("ab  c"))
    assert list(unpack_int32(message.input_ids)) == [97, 98, 2, 99]
    assert (message.uid, message.attempt) == (7, 0)
    assert message.sampling_params == SamplingParams(max_tokens=5, seed=3)
    assert message.stamps.received_ns == 1
    assert message.stamps.tokenized_ns > 1


def test_ids_are_taken_as_they_are() -> None:
    assert reader_of().read_one(prompt([0, 255, 3])).input_ids == pack_int32([0, 255, 3])


def test_a_continuation_passes_through() -> None:
    message = reader_of().read_one(prompt("abc", max_tokens=100, output_ids=pack_int32([1, 2, 3, 4]), num_chars_sent=9))
    assert (message.output_ids, message.num_chars_sent) == (pack_int32([1, 2, 3, 4]), 9)
    assert message.sampling_params.max_tokens == MAX_MODEL_LEN - 3, "counted from the prompt, over all attempts"


def test_spans_pass_through_to_all_choices() -> None:
    spans = (PromptSpan(0, 2, bytes(16)), PromptSpan(3, 1, bytes(16)))
    messages = reader_of().read_all(prompt([5] * 4, spans=spans, siblings=(Sibling(8, 1),)))
    assert [message.spans for message in messages] == [spans, spans]
    cut = Truncation(4)
    assert reader_of().read_one(prompt([5] * 4, spans=spans, truncation=cut)).spans == spans


def test_spans_are_refused_in_a_text_and_in_a_cut_prompt() -> None:
    spans = (PromptSpan(1, 3, bytes(16)),)
    for message, reason in (
        (prompt("abcd", spans=spans), "Only a prompt of token ids"),
        (prompt([5] * 5, spans=spans, truncation=Truncation(4)), "that is not truncated"),
    ):
        with pytest.raises(RequestError, match=reason) as raised:
            reader_of().read_one(message)
        assert raised.value.info.status == 400


@pytest.mark.parametrize(("num_tokens", "max_tokens", "lowered"), [(15, 5, 1), (11, 5, 5), (12, 5, 4), (3, 2, 2)])
def test_max_tokens_is_what_the_context_leaves(num_tokens: int, max_tokens: int, lowered: int) -> None:
    assert reader_of().read_one(prompt([1] * num_tokens, max_tokens)).sampling_params.max_tokens == lowered
    assert reader_of().read_one(prompt("a" * num_tokens, max_tokens)).sampling_params.max_tokens == lowered


@pytest.mark.parametrize("num_tokens", [16, 17, 1000])
def test_a_prompt_must_leave_room_for_a_token(num_tokens: int) -> None:
    for content in ([1] * num_tokens, "a" * num_tokens):
        refusal = refusal_of(content)
        assert "maximum context length is 16 tokens, the request has" in str(refusal)
        assert refusal.info.code == "context_length_exceeded"
        assert refusal.info.too_long is not None
        length, limit = refusal.info.too_long
        assert limit == 15 < length <= num_tokens
    assert f"the request has {num_tokens} " in str(refusal_of([1] * num_tokens))


def test_a_prompt_may_fill_the_context_where_no_token_is_requested() -> None:
    reader = reader_of()
    for content in ([1] * 16, "a" * 16):
        assert reader.read_one(prompt(content, max_tokens=0)).sampling_params.max_tokens == 0
        assert "room" in str(refusal_of(content, reader))
    for content in ([1] * 17, "a" * 17, " " * 1000):
        with pytest.raises(RequestError) as raised:
            reader.read_one(prompt(content, max_tokens=0))
        assert "maximum context length is 16 tokens" in str(raised.value)
        assert "room" not in str(raised.value)


def test_a_chat_is_rendered() -> None:
    reader = reader_of(template="<{{ messages[0].content }}>")
    message = reader.read_one(chat_message(chat(user("ab"))))
    assert bytes(unpack_int32(message.input_ids).tolist()) == b"<ab>"


def test_refusals_of_a_chat_name_its_messages() -> None:
    for content in ("a" * 50, "日"):
        with pytest.raises(RequestError) as raised:
            reader_of().read_one(chat_message(chat(user(content))))
        assert raised.value.info.param == "messages"


def test_the_same_text_in_a_row_is_tokenized_once() -> None:
    texts: list[str] = []

    def encode(text: str) -> list[int]:
        texts.append(text)
        return encode_letters(text)

    reader = reader_of(encode)
    for text in ("ab", "ab", "ab", "c", "ab"):
        assert list(unpack_int32(reader.read_one(prompt(text)).input_ids)) == encode_letters(text)
    assert reader.read_one(prompt("ab", add_special_tokens=False)).uid == 7
    assert texts == ["ab", "c", "ab", "ab"]


def test_a_text_that_is_refused_is_refused_again() -> None:
    reader = reader_of()
    for _ in range(2):
        refusal_of("a日", reader)
        refusal_of("a" * 16, reader)


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_prompt(content: str | list[int]) -> None:
    assert "empty" in str(refusal_of(content))


@pytest.mark.parametrize("token_id", [256, -1, 2**31 - 1])
def test_an_id_outside_the_vocabulary(token_id: int) -> None:
    assert f"Token id {token_id} at position 2 of the prompt is outside the vocabulary (0 to 255)" in str(
        refusal_of([0, 255, token_id, 300])
    )


def test_a_text_with_a_token_that_the_model_does_not_have() -> None:
    assert "Token id 300" in str(refusal_of("a日"))


@settings(deadline=None)
@given(text=st.text("a ", max_size=100))
def test_long_texts_are_refused_just_as_if_all_of_them_were_tokenized(text: str) -> None:
    fits = 0 < len(encode_letters(text)) < MAX_MODEL_LEN
    try:
        message = reader_of().read_one(prompt(text))
    except RequestError:
        assert not fits
    else:
        assert fits
        assert list(unpack_int32(message.input_ids)) == encode_letters(text)


@pytest.mark.parametrize("letter", ["a", " "])
def test_the_work_for_a_long_text_is_bounded(letter: str) -> None:
    num_chars_encoded = 0

    def encode(text: str) -> list[int]:
        nonlocal num_chars_encoded
        num_chars_encoded += len(text)
        return encode_letters(text)

    refusal = refusal_of(letter * 1_000_000, reader_of(encode))
    assert "the request has at least" in str(refusal)
    assert num_chars_encoded <= 2 * MAX_MODEL_LEN * LONGEST


LONG = "abcdefghijklmnopqrstuvwxyz"


def cut(content: str | list[int], num_tokens: int, max_tokens: int = 5, **fields: Any) -> str:
    """Returns the ids of a truncated prompt."""
    message = prompt(content, max_tokens, truncation=Truncation(num_tokens, **fields))
    read = reader_of().read_one(message)
    num_left = MAX_MODEL_LEN - len(unpack_int32(read.input_ids))
    assert read.sampling_params.max_tokens == min(max_tokens, num_left)
    return bytes(unpack_int32(read.input_ids).tolist()).decode()


@pytest.mark.parametrize("content", [LONG, list(LONG.encode())])
def test_a_prompt_is_cut_to_its_last_tokens_or_its_first(content: str | list[int]) -> None:
    assert cut(content, 3) == "xyz"
    assert cut(content, 3, side="right") == "abc"
    assert cut(content, 15) == LONG[-15:]
    assert cut(content[:2], 3) == "ab"


def test_minus_one_leaves_room_for_the_output() -> None:
    assert cut(LONG, -1, max_tokens=6) == LONG[-10:]
    assert cut(LONG, -1, max_tokens=6, side="right") == LONG[:10]
    assert cut(LONG, -1, max_tokens=0) == LONG[-16:]
    for as_much_as_there_is in (16, 1000):
        assert cut(LONG, -1, max_tokens=as_much_as_there_is) == LONG[-15:]
    assert cut("abc", -1, max_tokens=6) == "abc"


def test_a_chat_is_cut_after_it_is_rendered() -> None:
    message = msgspec.structs.replace(chat_message(chat(user("abcdef"))), truncation=Truncation(11))
    assert bytes(unpack_int32(reader_of().read_one(message).input_ids).tolist()) == b"\nassistant:"


def test_one_text_may_be_cut_in_several_ways() -> None:
    reader = reader_of()
    for num_tokens in (3, 5, 3):
        read = reader.read_one(prompt(LONG, truncation=Truncation(num_tokens)))
        assert bytes(unpack_int32(read.input_ids).tolist()).decode() == LONG[-num_tokens:]
    refusal_of(LONG, reader)


def test_a_text_far_beyond_all_contexts_is_not_cut() -> None:
    reader = reader_of(lambda text: list(text.encode()))
    read = reader.read_one(prompt("a" * MAX_ENCODED_CHARS, truncation=Truncation(3)))
    assert list(unpack_int32(read.input_ids)) == [97] * 3
    with pytest.raises(RequestError) as raised:
        reader.read_one(prompt("a" * (MAX_ENCODED_CHARS + 1), truncation=Truncation(3)))
    assert f"at most {MAX_ENCODED_CHARS}" in str(raised.value)
    assert raised.value.info.param == "prompt"


def test_what_is_left_must_be_valid() -> None:
    assert cut([300, 97], 1) == "a"
    with pytest.raises(RequestError, match="empty"):
        cut([], 3)
    with pytest.raises(RequestError, match="Token id 300"):
        cut([97, 300], 1)


def test_biases_of_texts_and_bad_words_are_filled_in():
    texts = (("a", 2.0), ("b", None))
    expected = SamplingParams(max_tokens=5, bad_words=("c",), bias_texts=texts)
    params = reader_of().read_one(msgspec.structs.replace(prompt("ab"), sampling_params=expected)).sampling_params
    assert params.bias_ids == pack_int32(encode_letters("a"))
    assert set(params.bad_word_ids) >= {pack_int32(encode_letters("b")), pack_int32(encode_letters("c"))}


def counting(calls: list[str]) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        calls.append(text)
        return encode_letters(text)

    return encode


def test_the_work_for_all_choices_is_done_once():
    calls: list[str] = []
    expected = SamplingParams(max_tokens=100, seed=3, bad_words=("c",), bias_texts=(("a", 2.0),))
    siblings = (Sibling(8, 4), Sibling(9, 5, engine=2))
    message = msgspec.structs.replace(prompt("ab"), sampling_params=expected, siblings=siblings)
    reader = reader_of(counting(calls))
    choices = reader.read_all(message)
    assert calls == ["ab", "a", "c", " c"]
    assert [(one.uid, one.sampling_params.seed, one.engine) for one in choices] == [(7, 3, 1), (8, 4, 1), (9, 5, 2)]
    for one, alone in zip(choices, message.each(), strict=True):
        assert reader_of().read_one(alone).sampling_params == one.sampling_params
        assert (one.input_ids, one.sampling_params.max_tokens) == (pack_int32(encode_letters("ab")), 14)


def test_what_the_texts_of_parameters_become_is_kept_for_the_next_prompt():
    calls: list[str] = []
    reader = reader_of(counting(calls))
    for text, seed, max_tokens in (("ab", 3, 1), ("cd", 4, 2)):
        expected = SamplingParams(max_tokens=max_tokens, seed=seed, bad_words=("x",))
        params = reader.read_one(msgspec.structs.replace(prompt(text), sampling_params=expected)).sampling_params
        assert (params.seed, params.max_tokens) == (seed, max_tokens)
        assert params.bad_word_ids
    assert calls == ["ab", "x", " x", "cd"]


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


TURNS_TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
SYSTEM: dict[str, Any] = {"role": "system", "content": "S"}
RESULT: dict[str, Any] = {"role": "tool", "content": "r", "tool_call_id": "c"}


def shortened(*messages: dict[str, Any], num_tokens: int = 12, reader: Reader | None = None) -> str:
    """Returns the prompt of a chat that may lose its oldest messages; the context has 16 tokens."""
    reader = reader or reader_of(template=TURNS_TEMPLATE)
    cut = Truncation(num_tokens, "left", drops_messages=True)
    read = reader.read_one(msgspec.structs.replace(chat_message(chat(*messages)), truncation=cut))
    return bytes(unpack_int32(read.input_ids).tolist()).decode()


def test_a_chat_that_is_too_long_loses_its_oldest_turns() -> None:
    turns = [message for letter in "bcdefgh" for message in (user(letter), answer(letter))]
    assert shortened(SYSTEM, *turns[:6], user("z")) == "sSucacudaduz"
    assert shortened(SYSTEM, *turns, user("z"), num_tokens=15) == "sSugaguhahuz"
    assert shortened(SYSTEM, *turns, user("z"), num_tokens=9) == "sSuhahuz"
    assert shortened(SYSTEM, user("b"), answer("b"), user("0123456789")) == "sSu0123456789"
    assert shortened(user("b"), answer("b"), user("z")) == "ubabuz", "it fits"


def test_the_newest_turn_stays_whole_if_it_fits_the_context() -> None:
    assert shortened(SYSTEM, user("a"), user("0123456789ab")) == "sSu0123456789ab"
    assert shortened(SYSTEM, user("aaa"), user("b"), answer("c"), RESULT, answer("d"), RESULT) == "sSubactradtr"


def test_the_newest_message_is_cut_if_it_does_not_fit() -> None:
    assert shortened(SYSTEM, user("a"), user(LONG)) == LONG[-12:]
    cut = Truncation(12, "left", drops_messages=True)
    for text, kept in ((LONG, LONG[-12:]), (LONG[:15], LONG[:15]), (LONG[:16], LONG[4:16])):
        read = reader_of().read_one(prompt(text, truncation=cut))
        assert bytes(unpack_int32(read.input_ids).tolist()).decode() == kept


def test_the_work_to_shorten_a_chat_is_bounded_by_the_context() -> None:
    num_chars_encoded = 0

    def encode(text: str) -> list[int]:
        nonlocal num_chars_encoded
        num_chars_encoded += len(text)
        return encode_letters(text)

    reader = reader_of(encode, TURNS_TEMPLATE)
    assert shortened(*[user("abcdefg")] * 30_000, user("z"), num_tokens=10, reader=reader) == "uabcdefguz"
    assert num_chars_encoded <= 20 * MAX_MODEL_LEN * LONGEST


def test_the_client_and_its_share_travel_with_the_prompt():
    message = msgspec.structs.replace(prompt([1, 2]), client="team-a", share=3)
    (user,) = reader_of().read(message, None, 0)
    assert (user.client, user.share) == ("team-a", 3)
