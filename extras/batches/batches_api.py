"""`/v1/batches`: many requests in a file, answered when there is time, as OpenAI's API has them."""

import time
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from extras.batches.files_api import Page, StoreApi, client_of, on_disk, page_of, read_query
from extras.batches.lines import ENDPOINTS
from extras.batches.records import BatchRecord, ExpiresAfter
from extras.batches.store import BatchStore
from frontend.errors import RetryError
from frontend.http.body import BodyDecoder
from frontend.http.field_names import UnknownFields
from frontend.http.responses import JsonReply
from frontend.requests.client import Client
from messages.errors import ErrorInfo, RequestError, bad_request, quoted

MAX_OPEN = 100
"""Batches that may be open."""

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
UNIT_S = {"h": 3600, "d": 86400}
WINDOW_PATTERN = r"^[1-9][0-9]{0,3}[hd]\Z"

Key = Annotated[str, Meta(max_length=64)]
Value = Annotated[str, Meta(max_length=512)]


class BatchBody(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: Annotated[str, Meta(description="the id of a file")]
    endpoint: Annotated[str, Meta(description=f"one of {', '.join(ENDPOINTS)}", extra_json_schema={"enum": ENDPOINTS})]
    completion_window: Annotated[
        str,
        Meta(
            pattern=WINDOW_PATTERN, description="hours or days after which what is not answered expires, as 24h or 7d"
        ),
    ]
    metadata: Annotated[
        Annotated[dict[Key, Value], Meta(max_length=16)] | None,
        Meta(description="an object of at most 16 strings of at most 512 characters"),
    ] = None
    output_expires_after: Annotated[
        ExpiresAfter | None, Meta(description='an object with the anchor "created_at" and seconds, an hour to 30 days')
    ] = None


class BatchList(Page, frozen=True, kw_only=True):
    data: list[BatchRecord]


class BatchApi(StoreApi):
    """The batches themselves are run by the frontend that holds the store's lock."""

    def __init__(self, store: BatchStore | None, unknown: UnknownFields):
        super().__init__(store)
        self._decoder = BodyDecoder(BatchBody, unknown=unknown)

    async def create(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 400, 404 for an unknown file, 429 if too many batches are open."""
        store = self._store
        body = (await self._decoder.receive(request)).fields
        if body.endpoint not in ENDPOINTS:
            raise bad_request(
                f"endpoint must be one of {', '.join(ENDPOINTS)}, got {quoted(body.endpoint)}", "endpoint"
            )
        return JsonReply(await on_disk(lambda: _create(store, body, client_of(request))))

    async def list_batches(self, request: Request) -> JsonReply:
        """Raises `RequestError` (400)."""
        query = read_query(request, "after", "limit")
        client = client_of(request)
        page = await on_disk(lambda: page_of(self._store.list_batches(client), query, DEFAULT_LIMIT, MAX_LIMIT))
        return JsonReply(BatchList(**page))

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        return JsonReply(await on_disk(partial(self._store.find_batch, request.path_params["id"], client_of(request))))

    async def cancel(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 404, 409 for one that has ended."""
        return JsonReply(await on_disk(partial(_cancel, self._store, request.path_params["id"], client_of(request))))


def _create(store: BatchStore, body: BatchBody, client: Client) -> BatchRecord:
    store.find_file(body.input_file_id, client)
    if sum(record.is_open for record in store.list_batches()) >= MAX_OPEN:
        raise RetryError(ErrorInfo(429, f"{MAX_OPEN} batches are open: wait for one", code="too_many_batches"))
    now_s = int(time.time())
    amount, unit = int(body.completion_window[:-1]), body.completion_window[-1]
    fields: dict[str, Any] = {**msgspec.structs.asdict(body), "key": client.key or msgspec.UNSET}
    return store.add_batch(BatchRecord(id="", created_at=now_s, expires_at=now_s + amount * UNIT_S[unit], **fields))


def _cancel(store: BatchStore, batch_id: str, client: Client) -> BatchRecord:
    record = store.find_batch(batch_id, client)
    if not record.is_open:
        message = f"the batch is {record.status} and cannot be cancelled"
        raise RequestError(ErrorInfo(409, message, code="batch_has_ended"))
    store.cancel(record)
    return store.find_batch(batch_id)
