"""`POST /generate`: the native endpoint, text or token ids in, a stream of events or one document out."""

from typing import Annotated

from msgspec import Meta
from starlette.requests import Request

from frontend import sse
from frontend.body import BodyDecoder, read_body
from frontend.generation import Generation
from frontend.sampling import NOT_YET, SamplingFields, TokenId, make_sampling_params, sampling_defaults
from frontend.service import Service
from frontend.stream import EventStream, OpenStreams, WholeReply
from frontend.timing import make_timing
from frontend.trace import REQUEST_ID_PATTERN, trace_of
from messages.replies import UserReply

DEFAULT_MAX_TOKENS = 128

PromptText = Annotated[str, Meta(min_length=1)]
PromptIds = Annotated[list[TokenId], Meta(min_length=1)]
RequestId = Annotated[str, Meta(pattern=REQUEST_ID_PATTERN)]


class GenerateBody(SamplingFields, frozen=True, kw_only=True):
    prompt: Annotated[PromptText | PromptIds, Meta(description="a string or a list of token ids, not empty")]
    stream: Annotated[bool | None, Meta(description="true or false")] = None
    request_id: Annotated[RequestId | None, Meta(description="a string of 1 to 128 letters, digits and ._:/+=-")] = None
    return_token_ids: Annotated[bool | None, Meta(description="true or false")] = None
    """Taken because other endpoints know it; here the ids are always returned."""


class GenerateApi:
    def __init__(self, service: Service, streams: OpenStreams):
        self._service = service
        self._streams = streams
        self._decoder = BodyDecoder(GenerateBody, NOT_YET)
        self._defaults = sampling_defaults(service.config.facts.sampling_defaults)
        self._max_body_bytes = int(service.config.http.max_body_mb * 2**20)

    async def generate(self, request: Request) -> EventStream | WholeReply:
        """Opens a generation. Raises `RequestError`; refusals by other processes come out of the response."""
        self._service.check_admission()
        body = self._decoder.decode(await read_body(request, self._max_body_bytes))
        params = make_sampling_params(
            body, self._defaults, max_tokens=DEFAULT_MAX_TOKENS, seed=self._service.next_seed()
        )
        trace = trace_of(request.scope)
        trace.request_id = body.request_id or trace.request_id
        is_streamed = body.stream is not False
        generation = self._service.open(body.prompt, params, trace, wakes_at_tokens=is_streamed)
        if is_streamed:
            return EventStream(self._service, self._streams, generation, GenerateEvents())
        return WholeReply(self._service, generation, end_event)


class GenerateEvents:
    """The events of a `/generate` stream."""

    def tokens(self, generation: Generation) -> bytes:
        text, token_ids = generation.take()
        return sse.tokens_frame(generation.uid, text, token_ids)

    def end(self, generation: Generation, final: UserReply) -> bytes:
        return sse.frame(end_event(generation, final))


def end_event(generation: Generation, final: UserReply) -> sse.EndEvent:
    """Takes what has arrived and returns it with how the request ended, what it used and how long it took."""
    text, token_ids = generation.take()
    return sse.EndEvent(
        uid=generation.uid,
        text=text,
        token_ids=token_ids,
        finish_reason=final.finish_reason,
        stop_reason=final.stop_reason,
        usage=sse.usage_fields(final.usage),
        timing=make_timing(
            final.stamps,
            num_tokens=final.usage.completion_tokens,
            seed=generation.message.sampling_params.seed,
            attempts=generation.attempt + 1,
            first_token_ns=generation.first_token_ns if generation.attempt else 0,
        ),
    )
