"""`POST /flush_cache`: empties the prefix cache."""

import msgspec
from starlette.requests import Request

from frontend.api.parameters.sampling import Switch
from frontend.http.body import BodyDecoder, read_body
from frontend.http.field_names import UnknownFields
from frontend.http.responses import JsonReply
from frontend.service import Service
from messages.errors import ErrorInfo, RequestError

MAX_BODY_BYTES = 65536


class FlushBody(msgspec.Struct, frozen=True, kw_only=True):
    force: Switch = None
    """Flush pages that running requests do not use, instead of refusing while any request runs."""


class FlushReply(msgspec.Struct, frozen=True):
    """`num_pages` cached pages have been freed."""

    num_pages: int


class CacheApi:
    def __init__(self, service: Service, unknown: UnknownFields):
        self._service = service
        self._decoder = BodyDecoder(FlushBody, unknown=unknown)

    async def flush(self, request: Request) -> JsonReply:
        """An empty body means `{}`. Raises `RequestError`: 409 while requests are running, unless forced."""
        body = self._decoder.decode(await read_body(request, MAX_BODY_BYTES) or b"{}")
        flushed = await self._service.queries.flush_cache(is_forced=bool(body.force))
        if flushed.num_requests:
            where = "" if self._service.processes.num_engines == 1 else " of the engines that have them"
            raise RequestError(
                ErrorInfo(
                    409,
                    f"{flushed.num_requests} requests are running: nothing{where} was flushed (see force)",
                    "conflict_error",
                    code="requests_running",
                )
            )
        return JsonReply(FlushReply(flushed.num_pages))
