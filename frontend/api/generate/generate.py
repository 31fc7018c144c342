"""`POST /generate`: the native endpoint. It takes text or token ids and returns a stream of events or one document."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.answers.logprob_fields import TokenNames
from frontend.api.generate.generate_events import GenerateEvents, GenerateView, end_event
from frontend.api.parameters.generation_body import GenerationFields, RequestReader, name_rules, truncation_of
from frontend.api.parameters.sampling import MAX_INT32, TOKEN_IDS_TEXT, NonEmpty, NumLogprobs, Sampling, TokenIds
from frontend.http.field_names import UnknownFields
from frontend.http.stream import EventStream, OpenStreams, WholeReply, take_images
from frontend.images.parts import listed_images
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.errors import bad_request

DEFAULT_MAX_TOKENS = 128

NOT_HERE: dict[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,), "suffix": ("",), "top_logprobs": (0,)}
"""Parameters of other endpoints, each with the values that have no effect."""

One = Annotated[int, Meta(ge=1, le=MAX_INT32)]


class GenerateBody(GenerationFields, frozen=True, kw_only=True):
    prompt: Annotated[NonEmpty | TokenIds, Meta(description=f"a string or {TOKEN_IDS_TEXT}, not empty")]
    images: Annotated[list[str] | None, Meta(description="a list of data: URLs, for a prompt of text")] = None
    logprobs: NumLogprobs = None
    n: Annotated[One | None, Meta(description="1; /v1/completions gives several choices")] = None


class GenerateApi:
    def __init__(self, service: Service, streams: OpenStreams, unknown: UnknownFields):
        self._service = service
        self._streams = streams
        self._reader = RequestReader(service, GenerateBody, name_rules(NOT_HERE), unknown)
        self._sampling = Sampling(service.config.facts)

    async def generate(self, request: Request) -> EventStream | WholeReply:
        """Opens a generation. Raises `RequestError`; if another process refuses the request, the response raises it."""
        body, warnings = await self._reader.read_warned(request)
        is_streamed, trace, requested = body.stream is not False, trace_of(request.scope), self._make_request(body)
        images = await take_images(self._service, listed_images(body.images), trace)
        generation = self._service.open(
            requested._replace(images=images), trace, is_streamed=is_streamed, timeout_s=body.timeout_s
        )
        view = GenerateView(TokenNames(bool(body.return_tokens_as_token_ids)), warnings)
        if is_streamed:
            events = GenerateEvents(generation, view)
            return EventStream(self._service, self._streams, [generation], events, shows_progress=True)
        return WholeReply(self._service, [generation], lambda: end_event(generation, view))

    def _make_request(self, body: GenerateBody) -> PromptRequest:
        if body.n is not None and body.n > 1:
            raise bad_request(f"n must be 1 here, got {body.n}: /v1/completions gives several choices", "n")
        if body.images and not isinstance(body.prompt, str):
            raise bad_request("images need a prompt of text: with token ids, there is no place for them", "images")
        params = self._sampling.make_params(body, max_tokens=DEFAULT_MAX_TOKENS, seed=self._service.next_seed())
        params = msgspec.structs.replace(params, num_logprobs=body.logprobs)
        truncation = truncation_of(body, params, self._service.config.facts.max_model_len)
        return PromptRequest(
            body.prompt, params, add_special_tokens=body.add_special_tokens is not False, truncation=truncation
        )
