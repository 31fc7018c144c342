"""What makes a prompt valid: it has a token, all its tokens exist, and it leaves room to generate one more."""

import time
from array import array

import msgspec

from messages.columns import pack_int32, unpack_int32
from messages.errors import RequestError, bad_request
from messages.requests import TokenizeMsg, UserMsg
from tokenizer_proc.encoding import Encoding

FIRST_PROBE_CHARS_PER_TOKEN = 4


class PromptReader:
    """Makes `UserMsg`s of `TokenizeMsg`s for one model. Keeps nothing between prompts.

    `vocab_size` is the model's, `max_model_len` the longest prompt plus output, in tokens.
    """

    def __init__(self, encoding: Encoding, vocab_size: int, max_model_len: int):
        self._encoding = encoding
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len

    def read(self, message: TokenizeMsg) -> UserMsg:
        """Returns the message with valid ids and `max_tokens` lowered to what the context leaves after the prompt.

        Raises `RequestError` for a prompt to refuse, and whatever the tokenizer raises.
        """
        ids = self._ids_of(message)
        self._check(ids)
        room_tokens = self._max_model_len - len(ids)
        sampling_params = message.sampling_params
        if sampling_params.max_tokens > room_tokens:
            sampling_params = msgspec.structs.replace(sampling_params, max_tokens=room_tokens)
        return UserMsg(
            uid=message.uid,
            attempt=message.attempt,
            input_ids=ids.tobytes(),
            sampling_params=sampling_params,
            stamps=msgspec.structs.replace(message.stamps, tokenized_ns=time.monotonic_ns()),
            output_ids=message.output_ids,
            num_chars_sent=message.num_chars_sent,
        )

    def _ids_of(self, message: TokenizeMsg) -> "array[int]":
        if message.prompt_text is None:
            return unpack_int32(message.prompt_ids)
        self._refuse_far_too_long(message.prompt_text)
        return unpack_int32(pack_int32(self._encoding.encode(message.prompt_text)))

    def _check(self, ids: "array[int]") -> None:
        if not ids:
            raise bad_request("The prompt is empty: it must have at least one token", "prompt")
        if len(ids) >= self._max_model_len:
            raise self._too_long(f"{len(ids)}")
        if max(ids) >= self._vocab_size or min(ids) < 0:
            position = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < self._vocab_size)
            raise bad_request(
                f"Token id {ids[position]} at position {position} of the prompt is outside the vocabulary "
                f"(0 to {self._vocab_size - 1})",
                "prompt",
            )

    def _refuse_far_too_long(self, text: str) -> None:
        """Raises for a text that cannot fit, after work that is bounded by the context and not by the text.

        First by length alone. Then by beginnings of growing length: if one has more tokens than the context by more
        than a cut inside a token can add, so has the whole.
        """
        longest = self._encoding.longest_token_chars
        if len(text) > self._max_model_len * longest:
            raise self._too_long(f"at least {len(text) // longest}")
        num_chars = max(longest, FIRST_PROBE_CHARS_PER_TOKEN * self._max_model_len) + longest
        while num_chars * 2 < len(text):
            num_tokens = len(self._encoding.encode(text[:num_chars])) - longest
            if num_tokens >= self._max_model_len:
                raise self._too_long(f"at least {num_tokens}")
            num_chars *= 4

    def _too_long(self, length: str) -> RequestError:
        return bad_request(
            f"This model's maximum context length is {self._max_model_len} tokens, the request has {length} in the "
            "prompt, which must leave room for at least one more",
            "prompt",
            "context_length_exceeded",
        )
