"""Biases that a request gives to texts, as those of tokens."""

import msgspec

from messages.columns import pack_float32, pack_int32, unpack_float32, unpack_int32
from messages.errors import bad_request
from messages.ring.requests import SamplingParams
from tokenizer_proc.encoding import Encoding


def with_text_biases(params: SamplingParams, encoding: Encoding, vocab_size: int) -> SamplingParams:
    """Returns `params` with the bias of each text given to every token of it, as in llama.cpp.

    Biases of one token add up. Raises `RequestError` for a text that has no token, or one that the model does not have.
    """
    if not params.bias_texts:
        return params
    biases = dict(zip(unpack_int32(params.bias_ids), unpack_float32(params.bias_values), strict=True))
    banned = dict.fromkeys(params.bad_word_ids)
    for text, value in params.bias_texts:
        ids = encoding.encode(text, add_special_tokens=False)
        if not ids or max(ids) >= vocab_size:
            raise bad_request(f"The text {text!r} cannot be written in tokens of the model", "logit_bias")
        for token_id in ids:
            if value is None:
                banned[pack_int32([token_id])] = None
            else:
                biases[token_id] = biases.get(token_id, 0.0) + value
    return msgspec.structs.replace(
        params, bias_ids=pack_int32(biases), bias_values=pack_float32(biases.values()), bad_word_ids=tuple(banned)
    )
