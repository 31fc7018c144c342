"""The body of OpenAI's endpoints, what a client wants to see in their replies, and the limits on choices."""

import time
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from frontend.api.answers.logprob_fields import TokenNames
from frontend.api.openai.usage import UsageReply, usage_so_far
from frontend.api.parameters.generation_body import ModelFields, ModelReader
from frontend.api.parameters.sampling import Switch
from frontend.requests.beam_search import EarlyStopping
from frontend.requests.generation import Generation
from frontend.requests.trace import RequestTrace
from frontend.service import Service
from messages.errors import bad_request
from messages.ring.requests import SamplingParams

NumChoices = Annotated[int, Meta(ge=1)]
NUM_CHOICES_TEXT = "a whole number from 1 to what --max-n-sequences allows"
LengthPenalty = Annotated[float, Meta(ge=-10, le=10)]


class StreamOptions(msgspec.Struct, frozen=True):
    """With `include_usage` a last chunk without choices tells the usage, with `continuous_usage_stats` every chunk."""

    include_usage: Switch = None
    continuous_usage_stats: Switch = None


class OpenAiFields(ModelFields, frozen=True, kw_only=True):
    """The fields of beam search are transformers' and, before its API was another one, vLLM's."""

    n: Annotated[NumChoices | None, Meta(description=NUM_CHOICES_TEXT)] = None
    stream_options: Annotated[
        StreamOptions | None, Meta(description="an object with include_usage and continuous_usage_stats")
    ] = None
    use_beam_search: Switch = None
    num_beams: Annotated[NumChoices | None, Meta(description="a whole number, with use_beam_search that of n")] = None
    length_penalty: Annotated[LengthPenalty | None, Meta(description="a number in [-10, 10]")] = None
    early_stopping: Annotated[EarlyStopping | None, Meta(description='true, false or "never"')] = None


class UsageOptions(NamedTuple):
    """When a stream tells its usage: in a last chunk, and in every one."""

    is_included: bool
    is_continuous: bool

    @property
    def unsaid(self) -> UnsetType | None:
        """What a chunk without usage has in its place: null where another chunk has it."""
        return None if self.is_included else UNSET

    def so_far(self, generation: Generation, *, is_last: bool = False) -> UsageReply | UnsetType | None:
        """Returns what a chunk says of the usage; `is_last` is the one that ends its choice."""
        return usage_so_far(generation, is_last=is_last) if self.is_continuous else self.unsaid


class ReplyView(msgspec.Struct, frozen=True, kw_only=True):
    """What a client of OpenAI's API wants to see of its choices."""

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
        """Tells whether a chunk of the stream has nothing but text."""
        return not (self.has_logprobs or self.has_token_ids or self.usage.is_continuous)


OpenAiT = TypeVar("OpenAiT", bound=OpenAiFields)


class OpenAiReader(ModelReader[OpenAiT]):
    def _check(self, body: OpenAiT) -> None:
        super()._check(body)
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
    """Raises `RequestError` (400) for more choices than may be; `name` is the field that asks for that many a prompt.

    It is called before anything is made for each prompt.
    """
    limit = service.config.scheduling.max_n_sequences
    if num_choices > limit:
        raise bad_request(f"{name} must be at most {limit} (--max-n-sequences), got {num_choices}", name)
    total, limit = num_prompts * num_choices, service.admission.limit
    if total > limit:
        raise bad_request(
            f"{total} choices are asked for, all prompts together, and at most {limit} may be open "
            "(--max-num-seqs and --max-queued-requests)",
            "prompt" if num_prompts > 1 else name,
        )


def check_choices_differ(params: SamplingParams, num_choices: int, name: str) -> None:
    """Raises `RequestError` (400) for several choices that would all be the same; `name` is the field that asks."""
    if num_choices > 1 and params.is_greedy:
        raise bad_request(f"{name} must be 1 with greedy sampling (temperature 0), got {num_choices}", name)
