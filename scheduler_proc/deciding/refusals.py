"""Refuses requests that no step could run, so that they cannot make the steps of others fail."""

import math
from array import array

from messages.columns import FLOAT32, num_int32, pack_int32, pack_int64, unpack_int32
from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.requests import SamplingParams, UserMsg
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.sampling.endings import NONE_LEFT
from scheduler_proc.deciding.sampling.logits_processing import find_logits_processors

UINT32 = "I"


def check_possible(message: UserMsg, limits: Limits) -> None:
    """Raises `RequestError` for a request that no step could run."""
    params = message.sampling_params
    try:
        num_prompt_tokens = len(unpack_int32(message.input_ids))
        unpack_int32(message.output_ids)
        pack_int64((message.uid, params.seed))
        pack_int32((message.attempt, params.top_k))
    except (ValueError, OverflowError) as error:
        raise bad_request(f"the request cannot be read: {error}") from None
    if params.adapter is not None and not limits.has_adapters:
        raise bad_request("LoRA is off here", "model")
    if not num_prompt_tokens:
        raise bad_request("the prompt is empty", param="prompt")
    if num_prompt_tokens + min(1, params.max_tokens) > limits.max_model_len:
        raise RequestError(
            ErrorInfo(
                status=400,
                message=f"maximum context length is {limits.max_model_len} tokens, "
                f"the request has {num_prompt_tokens} and needs room for one more",
                param="prompt",
                code="context_length_exceeded",
            )
        )
    _check_ids(message.input_ids + message.output_ids, limits.vocab_size, "prompt", "the prompt")
    _check_logits_processing(message, limits)
    _check_num_logprobs(params, limits.vocab_size)


def _check_logits_processing(message: UserMsg, limits: Limits) -> None:
    params, vocab_size = message.sampling_params, limits.vocab_size
    if params.allowed_token_ids:
        _check_ids(params.allowed_token_ids, vocab_size, "allowed_token_ids")
    if params.bias_ids or params.bias_values:
        if len(params.bias_ids) != len(params.bias_values):
            raise bad_request("logit_bias has not one value for each token id", param="logit_bias")
        _check_ids(params.bias_ids, vocab_size, "logit_bias")
        if not all(map(math.isfinite, memoryview(params.bias_values).cast(FLOAT32))):
            raise bad_request("logit_bias holds a value that is not finite", param="logit_bias")
    if not all(params.bad_word_ids):
        raise bad_request("bad_words holds a word without tokens", param="bad_words")
    _check_ids(b"".join(params.bad_word_ids), vocab_size, "bad_words")
    for word in params.bad_word_ids:
        if len(word) % 4:
            _check_ids(word, vocab_size, "bad_words")
    if params.dry is not None:
        _check_ids(params.dry.breaker_ids, vocab_size, "dry_sequence_breakers")
    processors = find_logits_processors(params, limits.eos_token_ids, vocab_size)
    if processors is not None and processors.leaves_none(unpack_int32(message.input_ids), 0):
        raise RequestError(NONE_LEFT)


def _check_ids(column: bytes, vocab_size: int, param: str, what: str | None = None) -> None:
    """Raises unless `column` is int32 and all its ids are in the vocabulary."""
    what = what or param
    if len(column) != 4 * num_int32(column):
        raise bad_request(f"{what} cannot be read: {len(column)} bytes are no column of int32", param=param)
    # As unsigned numbers negative ids are large ones, so that one pass finds both.
    if column and max(array(UINT32, column)) >= vocab_size:
        raise bad_request(f"{what} holds token ids outside [0, {vocab_size})", param=param)


def _check_num_logprobs(params: SamplingParams, vocab_size: int) -> None:
    for name, count in (("logprobs", params.num_logprobs), ("prompt_logprobs", params.num_prompt_logprobs)):
        if count is not None and not 0 <= count <= vocab_size:
            raise bad_request(f"{name} must be in [0, {vocab_size}], not {count}", param=name)
