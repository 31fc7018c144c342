"""The endpoints below `/v1/responses`: create, show, list the input, cancel and delete."""

import contextlib
from typing import Literal, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.parameters.generation_body import RequestReader, check_stream, name_rules, shows_progress
from frontend.api.parameters.sampling import MAX_INT32
from frontend.api.responses.background import BackgroundResponses, FollowingStream
from frontend.api.responses.body import IGNORED, REFUSED, ResponseBody, make_conversation
from frontend.api.responses.events import ResponseEvents
from frontend.api.responses.items import REFERENCE, Item, make_turns, read_items, response_of
from frontend.api.responses.reply import Response, ResponseAnswer
from frontend.api.responses.store import ResponseStore, StoredResponse
from frontend.api.responses.tools import served_tools
from frontend.errors import ErrorBody, ErrorForm, error_body, not_found
from frontend.http.field_names import UnknownFields
from frontend.http.query import read_count
from frontend.http.responses import JsonReply
from frontend.http.stream import EventStream, OpenStreams, WholeReply
from frontend.requests.trace import RequestTrace, trace_of
from frontend.service import Service
from messages.errors import ErrorInfo, RequestError, bad_request, quoted
from messages.ring.peers import UsedResponse, UseResponse

MAX_LISTED = 100
DEFAULT_LISTED = 20
PARAMS = {"messages": "input", "max_tokens": "max_output_tokens"}
"""The fields of this API, by the names that the errors of all chat APIs use."""

MEAN_RESPONSE_BYTES = 65536
"""Memory for stored responses, per response."""


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """All items that the response answers, including those of earlier responses."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ParsedRequest(NamedTuple):
    """A parsed body. `items`: all items that the response answers."""

    body: ResponseBody
    items: list[Item]
    conversation: Conversation


Action = Literal["show", "cancel", "delete"]

Order = Literal["asc", "desc"]

ELSEWHERE = "another frontend worker has this response: request it without stream, or again on another connection"


class ResponsesApi:
    def __init__(self, service: Service, streams: OpenStreams, unknown: UnknownFields, conversations: Conversations):
        self._service = service
        self._streams = streams
        self._unknown = unknown
        self._conversations = conversations
        self._reader = RequestReader(service, ResponseBody, name_rules(REFUSED, IGNORED), unknown, (check_stream,))
        http = service.config.http
        self.store = ResponseStore(http.max_stored_responses, http.max_stored_responses * MEAN_RESPONSE_BYTES)
        self._background = BackgroundResponses(service, self.store)
        service.sizes["stored_responses"] = self.store.__len__
        service.peers.register(UseResponse, self._use)

    async def create(self, request: Request) -> ASGIApp:
        """Opens the response. Raises `RequestError`; if another process refuses the request, the response raises it."""
        body, items, conversation = await self._read(request)
        is_stored = body.store is not False and self.store.is_used
        if body.background and not is_stored:
            raise bad_request(
                "background requires a stored response: store must not be false, and --max-stored-responses of the "
                "server must not be 0",
                "background",
            )
        trace = _own_trace(request) if body.background else trace_of(request.scope)
        try:
            (blocks,) = await self._conversations.open(
                conversation, trace, is_streamed=bool(body.stream), timeout_s=body.timeout_s
            )
        except RequestError as error:
            if body.background:  # the response to `request` ends another trace
                trace.status = error.info.status
                self._service.record_response(trace)
            raise
        choices = [blocks.generation]
        answer = ResponseAnswer(body, self._reader.model_name(body), blocks, is_stored=is_stored)
        if body.background:
            stored = self._background.start(answer, items, trace, is_streamed=bool(body.stream))
            return self._follow(stored, 0) if body.stream else JsonReply(answer.so_far())

        def end(response: Response) -> None:
            if is_stored:
                self.store.add(response, items, trace.client.key)

        if body.stream:
            events, is_shown = ResponseEvents(answer, end), shows_progress(body.stream_options)
            return EventStream(self._service, self._streams, choices, events, shows_progress=is_shown)

        def whole() -> Response:
            response = answer.ended(blocks.read_whole())
            end(response)
            return response

        return WholeReply(self._service, choices, whole)

    async def count(self, request: Request) -> JsonReply:
        """Raises `RequestError`."""
        conversation = (await self._read(request)).conversation
        return JsonReply(await self._conversations.count(conversation, trace_of(request.scope)))

    async def retrieve(self, request: Request) -> ASGIApp:
        """Raises `RequestError`: 404; 400 if the response has no stream; 409 if another frontend has the stream."""
        response_id: str = request.path_params["id"]
        query, only_of = request.query_params, _only_of(request)
        if query.get("stream") != "true":
            return _shown(await self._find(response_id, only_of))
        start = read_count(dict(query), "starting_after", -1, MAX_INT32, least=-1) + 1
        stored = self.store.find(response_id, only_of)
        if stored is None:
            await self._find(response_id, only_of)
            raise RequestError(ErrorInfo(409, ELSEWHERE, param="stream", code="other_frontend"))
        if stored.frames is None:
            raise bad_request(f"{response_id} has no stream: it was not created with background and stream", "stream")
        return self._follow(stored, start)

    async def list_input(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 404, or 400 if the query is invalid."""
        query = dict(request.query_params)
        limit = read_count(query, "limit", DEFAULT_LISTED, MAX_LISTED)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise bad_request(f"order must be asc or desc, got {quoted(order)}", "order")
        items = _decode_items(await self._find(request.path_params["id"], _only_of(request)))
        if order == "desc":
            items.reverse()
        if "after" in query:
            ids = [item.id for item in items]
            if query["after"] not in ids:
                raise bad_request(f"after must be the id of an item of the list, got {query['after'][:60]!r}", "after")
            items = items[ids.index(query["after"]) + 1 :]
        shown = items[:limit]
        first_id, last_id = (shown[0].id, shown[-1].id) if shown else (None, None)
        return JsonReply(InputItems(data=shown, first_id=first_id, last_id=last_id, has_more=len(items) > limit))

    async def cancel(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 404, or 400 if the response was not created in the background."""
        found = await self._find(request.path_params["id"], _only_of(request), "cancel")
        if not msgspec.json.decode(found.response, type=_Background).background:
            raise bad_request("only a response that was created with background can be cancelled")
        return _shown(found)

    async def delete(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        response_id: str = request.path_params["id"]
        await self._find(response_id, _only_of(request), "delete")
        return JsonReply(DeletedResponse(response_id))

    async def _read(self, request: Request) -> ParsedRequest:
        """Raises `RequestError`."""
        body = await self._reader.read(request)
        body = msgspec.structs.replace(body, tools=served_tools(body.tools, self._unknown))
        only_of = _only_of(request)
        provided = read_items(await self._resolved(body.input, only_of))
        earlier = await self._items_before(body.previous_response_id, only_of)
        items, reads_images = [*earlier, *provided], self._conversations.reads_images
        turns = make_turns(body.instructions, items, reads_images=reads_images, num_earlier=len(earlier))
        return ParsedRequest(body, items, make_conversation(body, turns.messages, self._conversations))

    def _follow(self, stored: StoredResponse, start: int) -> FollowingStream:
        return FollowingStream(stored, start, self._service.config.http.sse_keepalive_s)

    async def _items_before(self, previous_id: str | None, only_of: str | None) -> list[Item]:
        """Returns the items of the conversation that the response continues. Raises `RequestError`."""
        if previous_id is None:
            return []
        param = "previous_response_id"
        found = await self._find(previous_id, only_of, code="previous_response_not_found", param=param)
        previous = msgspec.json.decode(found.response, type=_Output)
        if previous.status == "in_progress":
            text = f"previous_response_id: {previous_id} is still in progress"
            raise bad_request(text, "previous_response_id", "response_in_progress")
        return [*_decode_items(found), *previous.output]

    async def _resolved(self, provided: str | list[Item], only_of: str | None) -> str | list[Item]:
        """Returns the input with references replaced by the items of stored responses. Raises `RequestError`."""
        if isinstance(provided, str):
            return provided
        outputs: dict[str, list[Item]] = {}
        for response_id in dict.fromkeys(response_of(item.id or "") for item in provided if item.kind == REFERENCE):
            if response_id is not None:
                with contextlib.suppress(RequestError):
                    found = await self._find(response_id, only_of)
                    outputs[response_id] = msgspec.json.decode(found.response, type=_Output).output
        known = {item.id: item for output in outputs.values() for item in output if item.status != "in_progress"}
        for index, item in enumerate(provided):
            if item.kind == REFERENCE and item.id is None:
                raise bad_request(f"input[{index}]: a type is required, or a role, or the id of an item", "input")
            if item.kind == REFERENCE and item.id not in known:
                raise bad_request(
                    f"input[{index}]: no stored response that has ended contains {item.id!r:.160} in its output: "
                    "send the item itself",
                    "input",
                    "item_not_found",
                )
        return [known[item.id] if item.kind == REFERENCE else item for item in provided]

    async def _find(
        self,
        response_id: str,
        only_of: str | None,
        action: Action = "show",
        *,
        code: str = "response_not_found",
        param: str | None = None,
    ) -> UsedResponse:
        """Returns the response from whichever frontend stores it. Raises `RequestError` (404)."""
        question = UseResponse(response_id, action, only_of)
        own = self._use(question)
        if own.response:
            return own
        others = await self._service.peers.ask_all(question, UsedResponse)
        for reply in others.by_name.values():
            if reply.response:
                return reply
        missing = f"; {others.num_missing} frontends did not answer" if others.num_missing else ""
        text = f"Response with id {quoted(response_id)} not found{missing}"
        raise not_found(text, code, param)

    def _use(self, question: UseResponse) -> UsedResponse:
        """Carries out `question` on this frontend's store."""
        stored = self.store.find(question.response_id, question.only_of)
        if stored is None:
            return UsedResponse()
        if question.action != "show":
            stored.cancel()
        if question.action == "delete":
            self.store.remove(question.response_id)
        return stored.show()


class _Background(msgspec.Struct):
    background: bool


class _Output(msgspec.Struct):
    status: str
    output: list[Item]


def _only_of(request: Request) -> str | None:
    return trace_of(request.scope).client.only_of


def _own_trace(request: Request) -> RequestTrace:
    """Returns the trace of a response that continues after the reply to `request`."""
    trace = RequestTrace(request.scope)
    replied = trace_of(request.scope)
    trace.request_id, trace.status, trace.client = replied.request_id, 200, replied.client
    trace.body, replied.body = replied.body, trace.body
    trace.limit_headers = replied.limit_headers
    return trace


def _shown(found: UsedResponse) -> JsonReply:
    return JsonReply(msgspec.Raw(found.response))


def _decode_items(found: UsedResponse) -> list[Item]:
    return msgspec.json.decode(found.input_items, type=list[Item])


def _error_body(info: ErrorInfo) -> ErrorBody:
    return error_body(msgspec.structs.replace(info, param=PARAMS.get(info.param or "", info.param)))


RESPONSE_ERRORS = ErrorForm(ErrorBody, _error_body)
