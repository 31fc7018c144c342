"""The body of OpenAI's endpoints, the view of its reply that a client requests, and the limits on choices."""

import time
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from frontend.api.answers.logprob_fields import TokenNames
from frontend.api.openai.usage import UsageReply, usage_so_far
from frontend.api.parameters.generation_body import ModelFields, ProgressOptions, check_stream
from frontend.api.parameters.sampling import MAX_INT32, Switch
from frontend.requests.beam_search import EarlyStopping
from frontend.requests.generation import Generation
from frontend.requests.trace import RequestTrace
from frontend.service import Service
from messages.errors import bad_request
from messages.ring.requests import SamplingParams

NumChoices = Annotated[int, Meta(ge=1, le=MAX_INT32)]
NUM_CHOICES_TEXT = "a whole number from 1 to 64"
LengthPenalty = Annotated[float, Meta(ge=-10, le=10)]


class StreamOptions(ProgressOptions, frozen=True):
    """`include_usage` adds a last chunk with usage but no choices; `continuous_usage_stats` adds it to every chunk."""

    include_usage: Switch = None
    continuous_usage_stats: Switch = None


class OpenAiFields(ModelFields, frozen=True, kw_only=True):
    """The fields of beam search follow transformers, and vLLM before it changed its API."""

    n: Annotated[NumChoices | None, Meta(description=NUM_CHOICES_TEXT)] = None
    stream_options: Annotated[
        StreamOptions | None,
        Meta(description="an object with include_usage, continuous_usage_stats and include_progress"),
    ] = None
    use_beam_search: Switch = None
    num_beams: Annotated[NumChoices | None, Meta(description="a whole number, with use_beam_search that of n")] = None
    length_penalty: Annotated[LengthPenalty | None, Meta(description="a number in [-10, 10]")] = None
    early_stopping: Annotated[EarlyStopping | None, Meta(description='true, false or "never"')] = None


class UsageOptions(NamedTuple):
    """Whether a stream reports its usage in a last chunk, and in every chunk."""

    is_included: bool
    is_continuous: bool

    @property
    def unsaid(self) -> UnsetType | None:
        """The `usage` of a chunk that reports none: null if another chunk reports it, otherwise unset."""
        return None if self.is_included else UNSET

    def so_far(self, generation: Generation, *, is_last: bool = False) -> UsageReply | UnsetType | None:
        """Returns the `usage` of a chunk; `is_last` if the chunk ends its choice."""
        return usage_so_far(generation, is_last=is_last) if self.is_continuous else self.unsaid


class ReplyView(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a reply that a client of OpenAI's API requests."""

    id: str
    created: int
    model: str
    names: TokenNames
    usage: UsageOptions
    has_logprobs: bool
    has_token_ids: bool
    has_prompt_logprobs: bool

    @property
    def is_plain(self) -> bool:
        """True if the chunks of the stream contain only text."""
        return not (self.has_logprobs or self.has_token_ids or self.usage.is_continuous)


def check_stream_options(body: OpenAiFields) -> None:
    """Raises `RequestError` (400) for fields that a stream cannot have, or only a stream can."""
    check_stream(body)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options are only for streams: stream must be true", "stream_options")


def usage_options(body: OpenAiFields) -> UsageOptions:
    options = body.stream_options or StreamOptions()
    is_continuous = bool(options.continuous_usage_stats) and bool(options.include_usage)
    return UsageOptions(bool(options.include_usage), is_continuous)


def view_fields(body: OpenAiFields, kind: str, trace: RequestTrace, model: str) -> dict[str, Any]:
    """Returns the fields of a `ReplyView` that follow from `body`, by name; the reply's id begins with `kind`."""
    return {
        "id": f"{kind}-{trace.request_id}",
        "created": int(time.time()),
        "model": model,
        "names": TokenNames(bool(body.return_tokens_as_token_ids)),
        "usage": usage_options(body),
        "has_token_ids": bool(body.return_token_ids),
        "has_prompt_logprobs": body.prompt_logprobs is not None,
    }


def check_num_choices(service: Service, num_choices: int, name: str, num_prompts: int = 1) -> None:
    """Raises `RequestError` (400) if `name` (`n` or `best_of`) exceeds the limit of choices per prompt or in total.

    Called before anything is allocated per prompt.
    """
    limit = service.config.scheduling.max_n_sequences
    if num_choices > limit:
        raise bad_request(f"{name} must be at most {limit}, got {num_choices}", name)
    total, limit = num_prompts * num_choices, service.admission.limit
    if total > limit:
        raise bad_request(
            f"{total} choices are requested for all prompts together, and at most {limit} may be open "
            "(--max-num-seqs and --max-queued-requests)",
            "prompt" if num_prompts > 1 else name,
        )


def check_choices_differ(params: SamplingParams, num_choices: int, name: str) -> None:
    """Raises `RequestError` (400) if all choices would be the same; `name` is the field that requests several."""
    if num_choices > 1 and params.is_greedy:
        raise bad_request(f"{name} must be 1 with greedy sampling (temperature 0), got {num_choices}", name)
