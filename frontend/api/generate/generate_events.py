"""The events of a `/generate` stream. Without a stream, the last event is the whole reply."""

from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.logprob_fields import NativeLogprobs, PromptLogprobs, TokenNames, prompt_logprobs
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from frontend.requests.timing import Timing, make_timing
from messages.ring.replies import FinishReason, Usage, UserReply


class UsageFields(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    image_tokens: int | UnsetType = UNSET
    """Those of the prompt's images, if it has any."""


class TokensEvent(msgspec.Struct, frozen=True):
    """The tokens of one step. `finish_reason` is null until the end; `logprobs` are present if requested."""

    uid: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    logprobs: list[NativeLogprobs] | UnsetType = UNSET


class EndEvent(msgspec.Struct, frozen=True):
    """The last tokens and the finish reason. Log-probabilities are present if requested, warnings if there are any."""

    uid: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: UsageFields
    timing: Timing
    logprobs: list[NativeLogprobs] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    """The fields of the body that were ignored."""


class GenerateView(NamedTuple):
    """How tokens are named in the reply, and the warnings that it includes."""

    names: TokenNames
    warnings: list[str]


class GenerateEvents(EventWriter):
    def __init__(self, generation: Generation, view: GenerateView):
        self._view = view
        self._has_logprobs = generation.message.sampling_params.num_logprobs is not None

    def tokens(self, generation: Generation) -> bytes:
        text, token_ids = generation.pop_step()
        if not self._has_logprobs:
            return tokens_frame(generation.uid, text, token_ids)
        logprobs = self._view.names.native(generation.pop_logprobs(len(token_ids)))
        return sse.frame(TokensEvent(generation.uid, text, token_ids, logprobs=logprobs))

    def end(self, generation: Generation, final: UserReply) -> bytes:
        return sse.frame(end_event(generation, self._view))


def tokens_frame(uid: int, text: str, token_ids: list[int]) -> bytes:
    """Returns the frame of one step, from a row of `StepReplies`."""
    return sse.frame(TokensEvent(uid, text, token_ids))


def end_event(generation: Generation, view: GenerateView) -> EndEvent:
    """Takes the remaining output and returns it with the finish reason, usage and timing."""
    final = generation.ended
    params = generation.message.sampling_params
    text, token_ids = generation.pop_all()
    return EndEvent(
        uid=generation.uid,
        text=text,
        token_ids=token_ids,
        finish_reason=final.finish_reason,
        stop_reason=final.stop_reason,
        usage=usage_fields(final.usage),
        timing=make_timing(
            final.stamps,
            num_tokens=final.usage.completion_tokens,
            seed=params.seed,
            attempts=generation.attempt + 1,
            first_token_ns=generation.first_token_ns if generation.attempt else 0,
        ),
        logprobs=UNSET if params.num_logprobs is None else view.names.native(generation.pop_logprobs(len(token_ids))),
        prompt_logprobs=UNSET if params.num_prompt_logprobs is None else prompt_logprobs(generation.prompt),
        warnings=view.warnings or UNSET,
    )


def usage_fields(usage: Usage) -> UsageFields:
    images = usage.image_tokens or UNSET
    return UsageFields(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, images)
