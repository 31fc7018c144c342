"""Validates prompts: each must have a token, use only existing tokens, and leave room for the output."""

import time
from array import array
from collections.abc import Callable, Iterator, Mapping

import msgspec

from messages.columns import pack_int32, unpack_int32
from messages.config.images import VisionFacts
from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.infill import Infill
from messages.ring.requests import ChatPrompt, EncodeMsg, SamplingParams, TokenizeMsg, Truncation, UserMsg
from messages.ring.spans import PromptSpan
from tokenizer_proc.encoding import MAX_ENCODED_CHARS, Encoding
from tokenizer_proc.image_forms import ImagePieces
from tokenizer_proc.image_prompts import ImagePrompts, PromptText
from tokenizer_proc.infill import InfillEncoder
from tokenizer_proc.joined_texts import Texts
from tokenizer_proc.oldest_messages import drop_oldest
from tokenizer_proc.parameter_texts import with_token_ids
from tokenizer_proc.thoughts import begun_in, place_of, with_thought

FIRST_PROBE_CHARS_PER_TOKEN = 4

MAX_COUNTED_CHARS = 100_000
"""A pooled text of at most this length is encoded to count its tokens. Tokenizers of encoders drop spaces, so a long
text may have few."""

RenderChat = Callable[[ChatPrompt], str | ImagePieces]


class PromptReader:
    """Converts `TokenizeMsg`s to `UserMsg`s for one model, in any thread.

    Caches the ids of the latest text and the latest parameters, which the prompts of one HTTP request and continuations
    of its choices share. `vocab_size` is the model's; `max_model_len` is the maximum length of prompt plus output in
    tokens. `named`: texts of special tokens by name. `vision`: the model's facts about images, if it reads any.
    """

    def __init__(
        self,
        encoding: Encoding,
        vocab_size: int,
        max_model_len: int,
        named: Mapping[str, str] = {},
        vision: VisionFacts | None = None,
    ):
        self._encoding = encoding
        self._images = ImagePrompts(vision, max_model_len, encoding.id_of)
        self._infills = InfillEncoder(encoding, named, max_model_len)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._last_ids: tuple[tuple[str, bool, Infill | None], array[int]] | None = None
        self._last_params: tuple[SamplingParams, SamplingParams] | None = None

    def text_of(self, message: TokenizeMsg | EncodeMsg, render: RenderChat) -> PromptText | None:
        """Returns the message's text or its rendered chat, with the tokens of its images; `None` for a prompt of ids.

        A chat leaves its oldest messages out if they must be dropped to fit the context. Raises `RequestError`.
        """
        images, chat = self._images.limited(message.images), self._images.numbered(message)
        cut = message.truncation if isinstance(message, TokenizeMsg) else None

        def expand(chat: ChatPrompt) -> PromptText:
            return self._images.expand(render(chat), images)

        if chat is None:
            prompt = self._images.expand_text(message.prompt_text, images)
        else:
            prompt = expand(chat)
            if isinstance(message, TokenizeMsg) and cut is not None and cut.drops_messages:
                limit = self._max_prompt_tokens(message.sampling_params)
                if not self._fits(prompt.text, limit):
                    return drop_oldest(chat, expand, lambda shorter: self._fits(shorter.text, cut.num_tokens)) or prompt
        if images and prompt is not None:
            self._images.check(prompt, images)
        return prompt

    def read(self, message: TokenizeMsg, prompt: PromptText | None, begun_ns: int) -> Iterator[UserMsg]:
        """Yields the message of each request, with valid ids and with `max_tokens` limited by the context.

        `prompt` is that of `text_of`. If `max_tokens` is above 0, the
        prompt must leave room for a token. Raises `RequestError`, and whatever the tokenizer raises.
        """
        asked, images = message.sampling_params, self._images.limited(message.images)
        chat, place, text = message.chat, None, None if prompt is None else prompt.text
        if text is not None and chat is not None and chat.thought is not None:
            place = place_of(text, chat.thought, begun_in(chat))
            asked = with_thought(asked, chat.thought, place)
        if message.infill is not None:
            asked = self._infills.with_ends(asked)
        max_prompt_tokens = self._max_prompt_tokens(asked)
        param, spans = "prompt" if message.chat is None else "messages", message.spans
        if text is None:
            ids = self._cut(unpack_int32(message.prompt_ids), message)
        elif asked.pooling is None:
            whole = self._ids_of(text, message, max_prompt_tokens, param)
            ids = self._cut(whole, message)
            if prompt is not None and prompt.runs:
                spans = _left_spans(self._images.find_spans(whole, prompt, images), message.truncation, whole, ids)
        else:
            ids, second_start = self._join(text, message, max_prompt_tokens, param)
            asked = msgspec.structs.replace(
                asked, pooling=msgspec.structs.replace(asked.pooling, second_start=second_start)
            )
        self._check(ids, max_prompt_tokens, param)
        if message.spans and len(message.prompt_ids) != ids.itemsize * len(ids):
            raise bad_request("Only a prompt of token ids that is not truncated may have spans", param)
        max_tokens = min(asked.max_tokens, self._max_model_len - len(ids))
        params = msgspec.structs.replace(self._params_of(asked), max_tokens=max_tokens)
        first = UserMsg(
            uid=message.uid,
            attempt=message.attempt,
            input_ids=ids.tobytes(),
            sampling_params=params,
            stamps=msgspec.structs.replace(
                message.stamps, tokenize_begun_ns=begun_ns, tokenized_ns=time.monotonic_ns()
            ),
            output_ids=message.output_ids,
            num_chars_sent=message.num_chars_sent,
            engine=message.engine,
            group=message.group,
            spans=spans,
            begins_in_thought=place == "inside",
            client=message.client,
            share=message.share,
            images=images,
        )
        yield first
        for sibling in message.siblings:
            own = msgspec.structs.replace(params, seed=sibling.seed)
            yield msgspec.structs.replace(first, uid=sibling.uid, engine=sibling.engine, sampling_params=own)

    def _max_prompt_tokens(self, params: SamplingParams) -> int:
        return self._max_model_len - min(1, params.max_tokens)

    def _fits(self, text: str, num_tokens: int) -> bool:
        """True if the text has at most this many tokens. The work is bounded by their number, not by the text."""
        return self._count_if_far_above(text, num_tokens) is None and len(self._encoding.encode(text)) <= num_tokens

    def _ids_of(self, text: str, message: TokenizeMsg, max_prompt_tokens: int, param: str) -> "array[int]":
        infill, adds = message.infill, message.add_special_tokens
        key = (text, adds, infill)
        last = self._last_ids
        if last is not None and last[0] == key:
            return last[1]
        self._check_chars(text + (infill.suffix if infill else ""), message, max_prompt_tokens, param)
        encoded = self._infills.encode(text, infill, adds) if infill else self._encoding.encode(text, adds)
        ids = unpack_int32(pack_int32(encoded))
        self._last_ids = key, ids
        return ids

    def _join(self, text: str, message: TokenizeMsg, max_prompt_tokens: int, param: str) -> tuple["array[int]", int]:
        """Returns the ids of a text that is pooled, possibly with a second one, and where that begins."""
        for each in (text, message.text_pair or ""):
            if len(each) > MAX_COUNTED_CHARS:
                self._check_chars(each, message, max_prompt_tokens, param)
        side = "right" if message.truncation is None else message.truncation.side
        joined = self._encoding.join(
            Texts(text, message.text_pair, message.add_special_tokens, self._num_kept(message), side)
        )
        return unpack_int32(pack_int32(joined.ids)), joined.second_start

    def _check_chars(self, text: str, message: TokenizeMsg, max_prompt_tokens: int, param: str) -> None:
        """Raises `RequestError` for a text that is too long to be encoded."""
        if message.truncation is None:
            self._refuse_far_too_long(text, max_prompt_tokens, param)
        elif len(text) > MAX_ENCODED_CHARS:
            limit = f"A prompt that is truncated may have at most {MAX_ENCODED_CHARS} characters"
            words = f"{limit}, the request has {len(text)} in the {param}"
            raise bad_request(words, param, "context_length_exceeded")

    def _params_of(self, params: SamplingParams) -> SamplingParams:
        """Returns the parameters with their texts as token ids and with `max_tokens` 0."""
        asked = msgspec.structs.replace(params, max_tokens=0, seed=0)
        last = self._last_params
        if last is None or last[0] != asked:
            last = self._last_params = asked, with_token_ids(asked, self._encoding, self._vocab_size)
        return msgspec.structs.replace(last[1], seed=params.seed)

    def _cut(self, ids: "array[int]", message: TokenizeMsg) -> "array[int]":
        truncation, num_kept = message.truncation, self._num_kept(message)
        if truncation is None or num_kept is None:
            return ids
        if truncation.drops_messages and len(ids) <= self._max_prompt_tokens(message.sampling_params):
            return ids
        return ids[max(0, len(ids) - num_kept) :] if truncation.side == "left" else ids[:num_kept]

    def _num_kept(self, message: TokenizeMsg) -> int | None:
        """Returns the maximum length of a prompt that is truncated, `None` if it is not."""
        if message.truncation is None or message.truncation.num_tokens >= 0:
            return message.truncation and message.truncation.num_tokens
        num_kept = self._max_model_len - message.sampling_params.max_tokens
        return num_kept if num_kept > 0 else self._max_model_len - 1

    def _check(self, ids: "array[int]", max_prompt_tokens: int, param: str) -> None:
        if not ids:
            raise bad_request("The prompt is empty: it must have at least one token", param)
        if len(ids) > max_prompt_tokens:
            raise self._too_long(len(ids), max_prompt_tokens, param)
        if max(ids) >= self._vocab_size or min(ids) < 0:
            position = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < self._vocab_size)
            raise bad_request(
                f"Token id {ids[position]} at position {position} of the prompt is outside the vocabulary "
                f"(0 to {self._vocab_size - 1})",
                param,
            )

    def _refuse_far_too_long(self, text: str, max_prompt_tokens: int, param: str) -> None:
        """Raises `RequestError` for a text that cannot fit. The work is bounded by the context, not by the text."""
        num_tokens = self._count_if_far_above(text, max_prompt_tokens)
        if num_tokens is not None:
            raise self._too_long(num_tokens, max_prompt_tokens, param, "at least ")

    def _count_if_far_above(self, text: str, limit: int) -> int | None:
        """Returns a number of tokens above `limit` that the text has at least, `None` if it may have fewer.

        Checks the length first, then encodes growing prefixes. If a prefix exceeds the limit by more tokens than a cut
        inside a token can add, the whole text does so, too.
        """
        if len(text) <= limit:
            return None
        longest = self._encoding.longest_token_chars
        if len(text) > self._max_model_len * longest:
            return len(text) // longest
        num_chars = max(longest, FIRST_PROBE_CHARS_PER_TOKEN * limit) + longest
        while num_chars * 2 < len(text):
            num_tokens = len(self._encoding.encode(text[:num_chars])) - longest
            if num_tokens > limit:
                return num_tokens
            num_chars *= 4
        return None

    def _too_long(self, num_tokens: int, max_prompt_tokens: int, param: str, at_least: str = "") -> RequestError:
        room = ", which must leave room for at least one more" if max_prompt_tokens < self._max_model_len else ""
        message = (
            f"This model's maximum context length is {self._max_model_len} tokens, the request has "
            f"{at_least}{num_tokens} in the {param}{room}"
        )
        too_long = (num_tokens, max_prompt_tokens)
        return RequestError(ErrorInfo(400, message, param=param, code="context_length_exceeded", too_long=too_long))


def _left_spans(
    spans: tuple[PromptSpan, ...], cut: Truncation | None, whole: "array[int]", ids: "array[int]"
) -> tuple[PromptSpan, ...]:
    """Returns the spans of images in `ids`, what truncation has left of the ids of the `whole` text.

    Raises `RequestError` if it has cut an image off.
    """
    offset = len(whole) - len(ids) if cut is not None and cut.side == "left" else 0
    if spans and not offset <= spans[0].start <= spans[-1].end - offset <= len(ids):
        raise bad_request("The prompt cannot be truncated: it would lose an image, or a part of one", "messages")
    return tuple(msgspec.structs.replace(span, start=span.start - offset) for span in spans)
