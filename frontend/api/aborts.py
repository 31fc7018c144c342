"""`POST /abort_request`: ends running requests by uid, by public id, or all of them."""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.generation import Generation
from frontend.http.body import BodyDecoder, read_body
from frontend.http.field_names import UnknownFields
from frontend.http.responses import JsonReply
from frontend.service import Service
from messages.errors import bad_request

MAX_BODY_BYTES = 65536


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    uid: Annotated[int | None, Meta(description="a whole number")] = None
    request_id: Annotated[str | None, Meta(description="a string")] = None
    all: Annotated[bool | None, Meta(description="true or false")] = None


class AbortReply(msgspec.Struct, frozen=True):
    aborted: list[int]
    """The uids of the requests whose end was asked for."""


class AbortApi:
    def __init__(self, service: Service, unknown: UnknownFields):
        self._service = service
        self._decoder = BodyDecoder(AbortBody, unknown=unknown)

    async def abort_request(self, request: Request) -> JsonReply:
        """Replies with the uids whose end was asked for; none for a request that is unknown or has ended."""
        body = self._decoder.decode(await read_body(request, MAX_BODY_BYTES))
        found = self._find(body)
        for generation in found:
            self._service.abort(generation)
        return JsonReply(AbortReply([generation.uid for generation in found]))

    def _find(self, body: AbortBody) -> list[Generation]:
        if (body.uid is not None) + (body.request_id is not None) + (body.all is True) != 1:
            raise bad_request('give exactly one of "uid", "request_id" and "all": true')
        registry = self._service.registry
        if body.uid is not None:
            generation = registry.find(body.uid)
            return [] if generation is None else [generation]
        named = _names(body.request_id)
        return [entry for entry in registry.all_open() if body.all or entry.request_id in named]


def _names(request_id: str | None) -> tuple[str | None, ...]:
    """Returns the ids that may be meant: replies of the OpenAI endpoints have theirs after `cmpl-` or `chatcmpl-`."""
    kind, dash, rest = (request_id or "").partition("-")
    return (request_id, rest) if dash and kind in ("cmpl", "chatcmpl") else (request_id,)
