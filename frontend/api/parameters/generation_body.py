"""The body of a request that generates: the fields that all such endpoints share, and how it is read."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.parameters.adapter_names import find_adapter
from frontend.api.parameters.foreign_fields import FOREIGN, NEUTRAL, RENAMED
from frontend.api.parameters.grammar import GrammarFields
from frontend.api.parameters.sampling import MAX_INT32, SamplingFields, Switch
from frontend.http.body import BodyDecoder, DecodedBody
from frontend.http.field_names import NameRules, UnknownFields
from frontend.requests.trace import REQUEST_ID_PATTERN, trace_of
from frontend.service import Service
from messages.config.server import ModelFacts
from messages.errors import bad_request
from messages.ring.requests import SamplingParams, Truncation, TruncationSide

REFUSED: dict[str, tuple[Any, ...]] = {
    "structural_tag": (),
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
"""Parameters that would change the answer but are not supported, each with the values that have no effect.

They include other servers' names for constraints on the answer: ignoring a constraint would be worse than a 400.
"""

CONSTRAINTS = (*GrammarFields.__struct_fields__, "structural_tag", "grammar", "json_schema", "regex", "ebnf")
"""Fields that constrain the answer, here or (the last five) on other servers."""

IGNORED = (
    *("parallel_tool_calls", "include_reasoning", "reasoning_effort", "prediction"),
    *("verbosity", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "moderation"),
    *("spaces_between_special_tokens", "guided_decoding_backend", "keep_alive"),
)
"""Parameters without effect on this server or, for the first three, outside of chats. A server of several models obeys
the last one before a model's own server gets the body."""

NumKept = Annotated[
    Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None,
    Meta(description=f"a whole number from 1 to {MAX_INT32}, below the model's context, or -1 for what that leaves"),
]
Side = Annotated[TruncationSide | None, Meta(description='"left" or "right"')]
RequestId = Annotated[
    Annotated[str, Meta(pattern=REQUEST_ID_PATTERN)] | None,
    Meta(description="a string of 1 to 128 letters, digits and ._:/+=-"),
]


class GenerationFields(SamplingFields, frozen=True, kw_only=True):
    """The fields of every endpoint that generates. The last four are validated but have no effect."""

    model: Annotated[str | None, Meta(description="a string, one of the names in /v1/models")] = None
    stream: Switch = None
    request_id: RequestId = None
    add_special_tokens: Switch = None
    truncate_prompt_tokens: NumKept = None
    truncation_side: Side = None
    user: Annotated[str | None, Meta(description="a string")] = None
    metadata: Annotated[dict[str, str] | None, Meta(description="an object of strings")] = None
    store: Switch = None
    service_tier: Annotated[str | None, Meta(description="a string")] = None


class ModelFields(GenerationFields, frozen=True, kw_only=True):
    """The fields of the endpoints of other servers' APIs."""


class ProgressOptions(msgspec.Struct, frozen=True):
    """`include_progress` adds comments with the request's place in the queue while it waits."""

    include_progress: Switch = None


def shows_progress(options: ProgressOptions | None) -> bool:
    return options is not None and bool(options.include_progress)


T = TypeVar("T", bound=msgspec.Struct)


class RequestReader(Generic[T]):
    """Reads the requests of an endpoint whose bodies are of type `struct`, with the fields `model` and `request_id`.

    `checks` raise `RequestError` if fields that are valid by themselves cannot be combined.
    """

    def __init__(
        self,
        service: Service,
        struct: type[T],
        rules: NameRules,
        unknown: UnknownFields,
        checks: Sequence[Callable[[T], None]] = (),
    ):
        self._service = service
        self._decoder = BodyDecoder(struct, rules, unknown, max_bytes=service.config.http.max_body_bytes)
        self._checks = checks

    async def read(self, request: Request) -> T:
        """Returns the body; the trace gets its request id. Raises `RequestError`."""
        return (await self.read_warned(request)).fields

    async def read_warned(self, request: Request) -> DecodedBody[T]:
        """Same as `read`, with a warning for each field that is ignored."""
        self._service.check_admission(trace_of(request.scope))
        decoded = await self._decoder.receive(request)
        fields: Any = decoded.fields
        check_model(self._service.config.facts, fields.model)
        for check in self._checks:
            check(fields)
        trace = trace_of(request.scope)
        trace.request_id = fields.request_id or trace.request_id
        return decoded

    def model_name(self, body: Any) -> str:
        """Returns the model's name as the client spells it."""
        return body.model or self._service.config.facts.served_names[0]


def check_stream(body: ModelFields) -> None:
    """Raises `RequestError` (400) for a stream with prompt logprobs."""
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("prompt_logprobs are not in streams: stream must be false", "prompt_logprobs")


def check_shown(body: GenerationFields) -> None:
    """Raises `RequestError` (400) for output that only the older endpoints can return."""
    for name in ("prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"):
        if getattr(body, name):
            raise bad_request(f"{name} is only for /v1/completions and /v1/chat/completions", name, "not_supported")


def truncation_of(body: GenerationFields, params: SamplingParams, max_model_len: int) -> Truncation | None:
    """Returns how to truncate the prompt, leaving room for one token unless `max_tokens` is 0.

    `None` if `truncate_prompt_tokens` is not given, whatever the side. Raises `RequestError` (400).
    """
    side, most = body.truncation_side or "left", max_model_len - min(1, params.max_tokens)
    return checked_truncation(body.truncate_prompt_tokens, side, most, "what the context leaves")


def checked_truncation(num_kept: int | None, side: TruncationSide, most: int, rest: str) -> Truncation | None:
    """Returns how to truncate the prompt to at most `most` tokens. `rest`: what -1 is for."""
    if num_kept is None:
        return None
    if num_kept == 0 or num_kept > most:
        raise bad_request(
            f"truncate_prompt_tokens must be a whole number from 1 to {most}, or -1 for {rest}, got {num_kept}",
            "truncate_prompt_tokens",
        )
    return Truncation(num_kept, side)


def name_rules(refused: dict[str, tuple[Any, ...]], ignored: Sequence[str] = ()) -> NameRules:
    """Returns how an endpoint that generates treats unknown fields; `refused` extends `REFUSED`."""
    return NameRules({**REFUSED, **refused}, (*IGNORED, *ignored), RENAMED, FOREIGN, CONSTRAINTS, NEUTRAL)


def check_model(facts: ModelFacts, name: str | None) -> None:
    """Raises `RequestError` (404) if `name` is not the model's, nor a LoRA adapter's; no name means the model."""
    find_adapter(facts, name)
