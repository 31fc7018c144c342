"""Calls that only convert: text or chat to ids, and ids to text."""

from messages.columns import num_int32, pack_int32, unpack_int32
from messages.errors import RequestError, bad_request
from messages.ring.replies import DecodeReply, EncodeReply
from messages.ring.requests import DecodeMsg, EncodeMsg
from tokenizer_proc.encoding import MAX_ENCODED_CHARS, Encoding


def encode(message: EncodeMsg, text: str, encoding: Encoding) -> EncodeReply:
    """Returns the ids of `text`: the message's, or its rendered chat. Raises `RequestError` if it is too long."""
    if len(text) > MAX_ENCODED_CHARS:
        raise _too_much(f"{len(text)} characters")
    ids = encoding.encode(text, message.add_special_tokens)
    token_strs = tuple(encoding.token_of(token_id) or "" for token_id in ids) if message.wants_token_strs else ()
    return EncodeReply(message.uid, pack_int32(ids), token_strs, text=text if message.wants_text else "")


def decode(message: DecodeMsg, encoding: Encoding, vocab_size: int) -> DecodeReply:
    """Returns the text of the ids with special tokens. Raises `RequestError` for an id outside the vocabulary."""
    num_ids = num_int32(message.token_ids)
    if num_ids > MAX_ENCODED_CHARS:
        raise _too_much(f"{num_ids} tokens")
    ids = unpack_int32(message.token_ids).tolist()
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"Token id {token_id} at position {position} is outside the vocabulary (0 to {vocab_size - 1})",
                "tokens",
            )
    return DecodeReply(message.uid, encoding.to_text(ids))


def _too_much(length: str) -> RequestError:
    return bad_request(f"The request has {length}, and one call may have at most {MAX_ENCODED_CHARS}")
