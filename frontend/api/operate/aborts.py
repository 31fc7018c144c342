"""`POST /abort_request`: ends running requests by uid, by public id, or all of them."""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.parameters.sampling import Int64
from frontend.http.body import BodyDecoder
from frontend.http.field_names import UnknownFields
from frontend.http.responses import JsonReply
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.errors import bad_request
from messages.ring.peers import AbortedOpen, AbortOpen


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    uid: Annotated[Int64 | None, Meta(description="a whole number")] = None
    request_id: Annotated[str | None, Meta(description="a string")] = None
    all: Annotated[bool | None, Meta(description="true or false")] = None


class AbortReply(msgspec.Struct, frozen=True):
    aborted: list[int]
    """The uids of the aborted requests."""
    frontends_missing: int
    """Number of frontends that did not answer in time. They abort their requests when they are responsive again."""


class AbortApi:
    def __init__(self, service: Service, unknown: UnknownFields):
        self._service = service
        self._decoder = BodyDecoder(AbortBody, unknown=unknown)
        service.peers.register(AbortOpen, self._abort)

    async def abort_request(self, request: Request) -> JsonReply:
        """Replies with the uids of the aborted requests; there are none if the request is unknown or has ended."""
        message = _make_abort((await self._decoder.receive(request)).fields)
        message = msgspec.structs.replace(message, only_of=trace_of(request.scope).client.only_of)
        own = self._abort(message)
        others = await self._service.peers.ask_all(message, AbortedOpen)
        uids = [uid for aborted in (own, *others.by_name.values()) for uid in aborted.uids]
        return JsonReply(AbortReply(uids, others.num_missing))

    def _abort(self, message: AbortOpen) -> AbortedOpen:
        """Aborts the requests of this frontend that `message` names."""
        found = [
            entry
            for entry in self._service.registry.all_open()
            if not entry.is_part
            and message.only_of in (None, entry.timeline.key)
            and (message.is_all or entry.uid in message.uids or entry.request_id in message.request_ids)
        ]
        for generation in found:
            self._service.abort(generation)
        return AbortedOpen(tuple(generation.uid for generation in found))


def _make_abort(body: AbortBody) -> AbortOpen:
    if (body.uid is not None) + (body.request_id is not None) + (body.all is True) != 1:
        raise bad_request('give exactly one of "uid", "request_id" and "all": true')
    return AbortOpen(
        uids=() if body.uid is None else (body.uid,),
        request_ids=() if body.request_id is None else names_of(body.request_id),
        is_all=bool(body.all),
    )


def names_of(request_id: str) -> tuple[str, ...]:
    """Returns the ids that `request_id` may stand for: OpenAI's endpoints prefix it with `cmpl-` or `chatcmpl-`."""
    kind, dash, rest = request_id.partition("-")
    return (request_id, rest) if dash and kind in ("cmpl", "chatcmpl") else (request_id,)
