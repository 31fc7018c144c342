"""The reply of `/infill`, with llama.cpp's fields: one document, or events, the last of which has all fields."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.logprob_fields import NativeLogprobs, TokenNames
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from frontend.requests.timing import make_timing
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply

StopType = Literal["eos", "word", "limit", "none"]


class Timings(msgspec.Struct, frozen=True):
    """Tokens that were computed, with their milliseconds; `cache_n` tokens of the prompt were found in the cache."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillPiece(msgspec.Struct, frozen=True):
    """The text of one step."""

    content: str
    tokens: list[int]
    stop: bool = False
    completion_probabilities: list[NativeLogprobs] | UnsetType = UNSET


class InfillEnd(msgspec.Struct, frozen=True):
    """The whole reply; in a stream, `content` and `tokens` are those of the last step."""

    content: str
    tokens: list[int]
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    stop_type: StopType
    stopping_word: str
    timings: Timings
    completion_probabilities: list[NativeLogprobs] | UnsetType = UNSET


class InfillView(NamedTuple):
    """What a client requests of its reply; without `fields` it is whole."""

    model: str
    has_tokens: bool
    fields: tuple[str, ...]


class InfillEvents(EventWriter):
    def __init__(self, generation: Generation, view: InfillView):
        self._generation = generation
        self._view = view
        self._has_logprobs = generation.message.sampling_params.num_logprobs is not None

    def tokens(self, generation: Generation) -> bytes:
        text, token_ids = generation.pop_step()
        tokens = token_ids if self._view.has_tokens else []
        return sse.frame(InfillPiece(text, tokens, completion_probabilities=self._logprobs(len(token_ids))))

    def end(self, generation: Generation, final: UserReply) -> bytes:
        return sse.frame(self._end())

    def close(self) -> bytes:
        """llama.cpp's streams end with the last event."""
        return b""

    def fail(self, error: ErrorInfo) -> bytes:
        return sse.error_frame(error)

    def whole(self) -> InfillEnd | dict[str, Any]:
        """Takes the output and returns the document, or the requested fields of it."""
        end = self._end()
        return pick(msgspec.to_builtins(end), self._view.fields) if self._view.fields else end

    def _end(self) -> InfillEnd:
        generation = self._generation
        final = generation.ended
        text, token_ids = generation.pop_all()
        usage, reason = final.usage, final.stop_reason
        stop_type: StopType = "limit" if final.finish_reason == "length" else "none"
        if final.finish_reason == "stop":
            stop_type = "word" if isinstance(reason, str) else "eos"
        return InfillEnd(
            content=text,
            tokens=token_ids if self._view.has_tokens else [],
            stop=True,
            model=self._view.model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            tokens_cached=usage.prompt_tokens + usage.completion_tokens,
            truncated=False,
            stop_type=stop_type,
            stopping_word=reason if isinstance(reason, str) else "",
            timings=self._timings(final),
            completion_probabilities=self._logprobs(len(token_ids)),
        )

    def _logprobs(self, num_tokens: int) -> list[NativeLogprobs] | UnsetType:
        return TokenNames().native(self._generation.pop_logprobs(num_tokens)) if self._has_logprobs else UNSET

    def _timings(self, final: UserReply) -> Timings:
        usage = final.usage
        timing = make_timing(final.stamps, num_tokens=usage.completion_tokens, seed=0)
        prompt = usage.prompt_tokens - usage.cached_tokens, timing.prefill_ms or 0.0
        predicted = usage.completion_tokens, timing.decode_ms or 0.0
        return Timings(usage.cached_tokens, *prompt, *_rates(*prompt), *predicted, *_rates(*predicted))


def pick(document: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Returns the fields that exist, each under its path, as llama.cpp does: "timings/prompt_n"."""
    picked: dict[str, Any] = {}
    for path in fields:
        found: Any = document
        for name in path.split("/"):
            found = found.get(name, UNSET) if isinstance(found, dict) else UNSET  # pyright: ignore
        if found is not UNSET:
            picked[path] = found
    return picked


def _rates(num_tokens: int, ms: float) -> tuple[float, float]:
    """Returns milliseconds per token, and tokens per second."""
    return (ms / num_tokens if num_tokens else 0.0), (1e3 * num_tokens / ms if ms else 0.0)
