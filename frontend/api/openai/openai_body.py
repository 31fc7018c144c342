"""What the endpoints that generate take alike, what those of OpenAI do, and the steps before a body is used."""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from frontend.api.openai.foreign_fields import FOREIGN, RENAMED
from frontend.api.openai.logprob_fields import TokenNames
from frontend.api.openai.models import check_model
from frontend.api.openai.usage import UsageReply, usage_so_far
from frontend.api.parameters.grammar import GrammarFields
from frontend.api.parameters.sampling import SamplingFields, Switch
from frontend.api.parameters.truncation import NumKept, Side, make_truncation
from frontend.http.body import BodyDecoder, read_body
from frontend.http.field_names import NameRules, UnknownFields
from frontend.requests.beam_search import EarlyStopping
from frontend.requests.generation import Generation
from frontend.requests.trace import REQUEST_ID_PATTERN, trace_of
from frontend.service import Service
from messages.errors import bad_request
from messages.ring.requests import SamplingParams, Truncation

REFUSED: dict[str, tuple[Any, ...]] = {
    "structural_tag": (),
    "grammar": ("",),
    "json_schema": ({},),
    "regex": ("",),
    "ebnf": ("",),
    "format": ("",),
    "guided_whitespace_pattern": (),
    "image_data": ([],),
    "images": ([],),
    "lora": ([],),
    "lora_path": (),
    "adapter_id": (),
    "logits_processors": ([],),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "use_beam_search": (False,),
    "num_beams": (1,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "prompt_embeds": (),
}
"""Parameters that would change the answer and are not served, each with the values that ask for nothing.

Other servers' names for what the answer must be like are among them: to ignore a constraint would be worse than a 400.
"""

CONSTRAINTS = (*GrammarFields.__struct_fields__, "structural_tag", "grammar", "json_schema", "regex", "ebnf")
"""Fields that constrain the answer, here or (the last five) on other servers."""

IGNORED = (
    *("parallel_tool_calls", "include_reasoning", "reasoning_effort", "prediction"),
    *("verbosity", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "moderation"),
    *("spaces_between_special_tokens", "guided_decoding_backend"),
)
"""Parameters that mean nothing to this server, or (the first three) only in chats."""

NumChoices = Annotated[int, Meta(ge=1)]
NUM_CHOICES_TEXT = "a whole number from 1 to 64"
LengthPenalty = Annotated[float, Meta(ge=-10, le=10)]
RequestId = Annotated[str, Meta(pattern=REQUEST_ID_PATTERN)]
REQUEST_ID_TEXT = "a string of 1 to 128 letters, digits and ._:/+=-"


class StreamOptions(msgspec.Struct, frozen=True):
    """With `include_usage` a last chunk without choices tells the usage, with `continuous_usage_stats` every chunk."""

    include_usage: Switch = None
    continuous_usage_stats: Switch = None


class CommonFields(SamplingFields, frozen=True, kw_only=True):
    """What every endpoint that generates takes beside what it samples by. The last four are checked and not used."""

    stream: Switch = None
    request_id: Annotated[RequestId | None, Meta(description=REQUEST_ID_TEXT)] = None
    add_special_tokens: Switch = None
    truncate_prompt_tokens: NumKept = None
    truncation_side: Side = None
    user: Annotated[str | None, Meta(description="a string")] = None
    metadata: Annotated[dict[str, str] | None, Meta(description="an object of strings")] = None
    store: Switch = None
    service_tier: Annotated[str | None, Meta(description="a string")] = None


class ModelFields(CommonFields, frozen=True, kw_only=True):
    model: Annotated[str | None, Meta(description="a string, one of the names in /v1/models")] = None


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


T = TypeVar("T", bound=ModelFields)
OpenAiT = TypeVar("OpenAiT", bound=OpenAiFields)


class ModelReader(Generic[T]):
    """Reads the requests of an endpoint whose bodies are of type `struct`."""

    def __init__(self, service: Service, struct: type[T], rules: NameRules, unknown: UnknownFields):
        self._service = service
        self._decoder = BodyDecoder(struct, rules, unknown)
        self._max_body_bytes = int(service.config.http.max_body_mb * 2**20)

    async def read(self, request: Request) -> T:
        """Returns the body, whose request id is that of the trace from now on. Raises `RequestError`."""
        self._service.check_admission()
        body = self._decoder.decode(await read_body(request, self._max_body_bytes))
        check_model(self._service.config.facts, body.model)
        if body.prompt_logprobs is not None and body.stream:
            raise bad_request("prompt_logprobs are not in streams: stream must be false", "prompt_logprobs")
        trace = trace_of(request.scope)
        trace.request_id = body.request_id or trace.request_id
        return body

    def model_name(self, body: T) -> str:
        """Returns the model's name as the client says it."""
        return body.model or self._service.config.facts.served_names[0]


class OpenAiReader(ModelReader[OpenAiT]):
    async def read(self, request: Request) -> OpenAiT:
        body = await super().read(request)
        if body.stream_options is not None and not body.stream:
            raise bad_request("stream_options are only for streams: stream must be true", "stream_options")
        return body


def check_shown(body: CommonFields) -> None:
    """Raises `RequestError` (400) for what only the older endpoints can show."""
    for name in ("prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"):
        if getattr(body, name):
            raise bad_request(f"{name} is only for /v1/completions and /v1/chat/completions", name, "not_supported")


def truncation_of(body: CommonFields, params: SamplingParams, max_model_len: int) -> Truncation | None:
    """Returns how the prompt is to be cut so that room is left for a token, if one is wanted. Raises `RequestError`."""
    max_prompt_tokens = max_model_len - min(1, params.max_tokens)
    return make_truncation(body.truncate_prompt_tokens, body.truncation_side, max_prompt_tokens)


def usage_options(body: OpenAiFields) -> UsageOptions:
    options = body.stream_options or StreamOptions()
    is_continuous = bool(options.continuous_usage_stats) and bool(options.include_usage)
    return UsageOptions(bool(options.include_usage), is_continuous)


def name_rules(refused: dict[str, tuple[Any, ...]], ignored: Sequence[str] = ()) -> NameRules:
    """Returns what an endpoint that generates does about names it does not serve; `refused` is added to `REFUSED`."""
    return NameRules({**REFUSED, **refused}, (*IGNORED, *ignored), RENAMED, FOREIGN, CONSTRAINTS)


def check_num_choices(service: Service, num_choices: int, name: str, num_prompts: int = 1) -> None:
    """Raises `RequestError` (400) for more choices than may be; `name` is the field that asks for that many a prompt.

    It is called before anything is made for each prompt.
    """
    limit = service.config.scheduling.max_n_sequences
    if num_choices > limit:
        raise bad_request(f"{name} must be at most {limit}, got {num_choices}", name)
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
