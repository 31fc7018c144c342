import dataclasses

import pytest

from messages.columns import pack_int32
from messages.errors import RequestError
from messages.ring.replies import DecodeReply, EncodeReply
from messages.ring.requests import DecodeMsg, EncodeMsg
from tests.tokenizer_proc.parts import chat, encoding_of, user
from tokenizer_proc import calls
from tokenizer_proc.encoding import MAX_ENCODED_CHARS, Encoding

LETTERS = encoding_of(lambda text: [ord(char) for char in text])
WITH_BEGINNING = Encoding(
    lambda text, add: [1] * add + LETTERS.encode(text),
    LETTERS.to_text,
    LETTERS.token_of,
    LETTERS.vocabulary,
    LETTERS.join,
)


@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_a_text(add_special_tokens: bool) -> None:
    message = EncodeMsg(5, "ab", add_special_tokens=add_special_tokens)
    ids = [1, 97, 98] if add_special_tokens else [97, 98]
    assert calls.encode(message, "ab", WITH_BEGINNING) == EncodeReply(5, pack_int32(ids))


def test_a_chat_with_its_tokens() -> None:
    message = EncodeMsg(5, None, chat(user("é")), wants_token_strs=True)
    reply = calls.encode(message, "user: é\nassistant:", LETTERS)
    assert "".join(reply.token_strs) == "user: é\nassistant:"
    assert len(reply.token_ids) == 4 * len(reply.token_strs)


def test_an_id_without_a_token_has_an_empty_one() -> None:
    encoding = dataclasses.replace(LETTERS, token_of=lambda token_id: None)
    assert calls.encode(EncodeMsg(5, "a", wants_token_strs=True), "a", encoding).token_strs == ("",)


def test_a_text_may_be_longer_than_the_context_but_not_without_limit() -> None:
    text = "a" * (MAX_ENCODED_CHARS + 1)
    with pytest.raises(RequestError, match="at most"):
        calls.encode(EncodeMsg(5, text), text, LETTERS)


def test_ids() -> None:
    assert calls.decode(DecodeMsg(5, pack_int32([104, 105])), LETTERS, 256) == DecodeReply(5, "hi")
    assert calls.decode(DecodeMsg(5, b""), LETTERS, 256) == DecodeReply(5, "")


@pytest.mark.parametrize("token_id", [256, -1, 2**31 - 1])
def test_an_id_outside_the_vocabulary(token_id: int) -> None:
    with pytest.raises(RequestError) as raised:
        calls.decode(DecodeMsg(5, pack_int32([1, token_id])), LETTERS, 256)
    assert (raised.value.info.status, raised.value.info.param) == (400, "tokens")
    assert f"Token id {token_id} at position 1" in str(raised.value)
