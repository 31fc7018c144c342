"""Converts texts in sampling parameters to token ids: biased texts, bad words, DRY's sequence breakers, and labels."""

from array import array
from collections.abc import Sequence

import msgspec

from messages.columns import INT32, pack_float32, pack_int32, unpack_float32, unpack_int32
from messages.errors import bad_request, quoted
from messages.ring.dry import Dry
from messages.ring.requests import Pooling, SamplingParams
from tokenizer_proc.encoding import Encoding


def with_token_ids(params: SamplingParams, encoding: Encoding, vocab_size: int) -> SamplingParams:
    """Returns `params` with all its texts converted. Raises `RequestError` for a text that the model cannot write."""
    params = with_text_biases(params, encoding, vocab_size)
    return msgspec.structs.replace(
        params,
        bad_word_ids=bad_word_ids(params.bad_words, encoding, vocab_size) + params.bad_word_ids,
        dry=with_breaker_ids(params.dry, encoding, vocab_size),
        pooling=with_label_ids(params.pooling, encoding, vocab_size),
    )


def with_text_biases(params: SamplingParams, encoding: Encoding, vocab_size: int) -> SamplingParams:
    """Adds the bias of each text to every token of the text, as llama.cpp does. Biases of the same token add up.

    Raises `RequestError` for a text without tokens or with a token that the model does not have.
    """
    if not params.bias_texts:
        return params
    biases = dict(zip(unpack_int32(params.bias_ids), unpack_float32(params.bias_values), strict=True))
    banned = dict.fromkeys(params.bad_word_ids)
    for text, value in params.bias_texts:
        ids = encoding.encode(text, add_special_tokens=False)
        _check(ids, vocab_size, f"text {quoted(text)}", "logit_bias")
        for token_id in ids:
            if value is None:
                banned[pack_int32([token_id])] = None
            else:
                biases[token_id] = biases.get(token_id, 0.0) + value
    return msgspec.structs.replace(
        params, bias_ids=pack_int32(biases), bias_values=pack_float32(biases.values()), bad_word_ids=tuple(banned)
    )


def bad_word_ids(words: tuple[str, ...], encoding: Encoding, vocab_size: int) -> tuple[bytes, ...]:
    """Returns the id sequences (int32) of each word: at the beginning of a text and, if it differs, after a space.

    As in vLLM, except that the form after a space is left out only if the other form forbids it, too. Raises
    `RequestError` for a word without tokens or with a token that the model does not have.
    """
    sequences: dict[bytes, None] = {}
    for word in words:
        bare = encoding.encode(word.lstrip(), add_special_tokens=False)
        after_space = encoding.encode(" " + word.lstrip(), add_special_tokens=False)
        for ids in [bare] if after_space[-len(bare) :] == bare else [bare, after_space]:
            _check(ids, vocab_size, f"bad word {quoted(word)}", "bad_words")
            sequences[pack_int32(ids)] = None
    return tuple(sequences)


def with_breaker_ids(dry: Dry | None, encoding: Encoding, vocab_size: int) -> Dry | None:
    """Returns `dry` with the last token of each breaker, encoded after a letter as text-generation-webui does.

    A breaker without tokens, or with a token that the model does not have, is ignored.
    """
    if dry is None or not dry.sequence_breakers:
        return dry
    encoded = (encoding.encode("a" + breaker, add_special_tokens=False) for breaker in dry.sequence_breakers)
    ids = {ids[-1] for ids in encoded if ids and ids[-1] < vocab_size}
    return msgspec.structs.replace(dry, breaker_ids=pack_int32(sorted(ids)))


def with_label_ids(pooling: Pooling | None, encoding: Encoding, vocab_size: int) -> Pooling | None:
    """Returns `pooling` with the ids of its label texts. Raises `RequestError` for a label that is not one token."""
    if pooling is None or pooling.kind != "labels":
        return pooling
    ids = unpack_int32(pooling.label_ids)
    for text in pooling.label_texts:
        of_text = encoding.encode(text, add_special_tokens=False)
        if len(of_text) != 1:
            raise bad_request(
                f"The label {quoted(text)} has {len(of_text)} tokens of the model, and must have one", "labels"
            )
        ids += array(INT32, of_text)
    if not all(0 <= token_id < vocab_size for token_id in ids):
        raise bad_request(f"A label is outside the vocabulary (0 to {vocab_size - 1})", "labels")
    return msgspec.structs.replace(pooling, label_ids=ids.tobytes(), label_texts=())


def _check(ids: Sequence[int], vocab_size: int, text: str, param: str) -> None:
    if not ids or max(ids) >= vocab_size:
        raise bad_request(f"The {text} cannot be written in tokens of the model", param)
