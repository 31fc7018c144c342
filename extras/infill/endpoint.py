"""The body of `/infill`, and how a request is made of it."""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from extras.infill.reply import InfillEvents, InfillView
from frontend.api.parameters.generation_body import MAX_INT32, ModelFields, RequestReader, check_stream, name_rules
from frontend.api.parameters.sampling import NumLogprobs, Sampling, Switch
from frontend.extras import FrontendContext
from frontend.http.stream import EventStream, WholeReply
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import trace_of
from messages.errors import bad_request
from messages.ring.infill import ExtraFile, Infill

NumPredicted = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
NUM_PREDICTED_TEXT = "a whole number: the most tokens; 0 only reads the prompt, -1 is what the context leaves"
MAX_FILES = 1024


class InputExtra(msgspec.Struct, frozen=True):
    """Another file, or a part of one. Other fields, such as llama.vim's `time`, have no effect."""

    text: str
    filename: str = "tmp"


Extras = Annotated[list[InputExtra], Meta(max_length=MAX_FILES)]


class InfillBody(ModelFields, frozen=True, kw_only=True):
    """`prompt` is more of the prefix: the part of the line before the cursor."""

    input_prefix: Annotated[str, Meta(description="a string: the text before the gap")]
    input_suffix: Annotated[str, Meta(description="a string: the text after the gap")]
    input_extra: Annotated[Extras | None, Meta(description="a list of objects with a text and a filename")] = None
    prompt: Annotated[str | None, Meta(description="a string")] = None
    n_predict: Annotated[NumPredicted | None, Meta(description=NUM_PREDICTED_TEXT)] = None
    n_probs: NumLogprobs = None
    return_tokens: Switch = None
    response_fields: Annotated[list[str] | None, Meta(description='a list of fields, as "timings/prompt_n"')] = None


class InfillApi:
    def __init__(self, context: FrontendContext):
        self._service, self._streams = context.service, context.streams
        self._reader = RequestReader(
            self._service, InfillBody, name_rules({}, ("n_indent", "t_max_prompt_ms")), context.unknown, (check_stream,)
        )
        self._sampling = Sampling(self._service.config.facts)

    async def create(self, request: Request) -> EventStream | WholeReply:
        """Raises `RequestError`; if another process refuses the request, the response raises it."""
        body = await self._reader.read(request)
        for name in ("truncate_prompt_tokens", "prompt_logprobs"):
            if getattr(body, name) is not None:
                raise bad_request(f"{name} is not supported here", name, "not_supported")
        is_streamed = bool(body.stream)
        generation = self._service.open(
            self._make_request(body), trace_of(request.scope), is_streamed=is_streamed, timeout_s=body.timeout_s
        )
        view = InfillView(self._reader.model_name(body), bool(body.return_tokens), tuple(body.response_fields or ()))
        events = InfillEvents(generation, view)
        if is_streamed:
            return EventStream(self._service, self._streams, [generation], events)
        return WholeReply(self._service, [generation], events.whole)

    def _make_request(self, body: InfillBody) -> PromptRequest:
        max_tokens = body.max_tokens if body.n_predict in (None, -1) else body.n_predict
        service = self._service
        limit = service.config.facts.max_model_len if max_tokens is None else max_tokens
        fields = msgspec.structs.replace(body, max_tokens=max(1, limit))
        params = self._sampling.make_params(fields, max_tokens=limit, seed=service.next_seed())
        params = msgspec.structs.replace(params, max_tokens=limit, num_logprobs=body.n_probs or None)
        files = tuple(ExtraFile(extra.filename, extra.text) for extra in body.input_extra or ())
        infill = Infill(body.input_suffix, "input_suffix", files)
        prefix = body.input_prefix + (body.prompt or "")
        return PromptRequest(prefix, params, add_special_tokens=body.add_special_tokens is not False, infill=infill)
