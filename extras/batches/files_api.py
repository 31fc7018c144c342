"""`/v1/files`: the files of batches, as OpenAI's API has them."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from extras.batches.form_parser import FORM_BYTES, FormParser, file_too_large
from extras.batches.line_run import run_whole
from extras.batches.records import FileRecord, KeepSeconds, Purpose
from extras.batches.results import DISK_FULL
from extras.batches.store import KEEP_S, MAX_FILES, BatchStore
from frontend.errors import not_found
from frontend.http.query import read_count
from frontend.http.responses import FileReply, JsonReply
from frontend.requests.client import Client
from frontend.requests.trace import trace_of
from messages.errors import ErrorInfo, RequestError, bad_request, quoted

UPLOAD_TIMEOUT_S = 600.0
UPLOAD_IDLE_S = 60.0
"""An upload that sends nothing for this long is cut off, because it occupies part of the quota."""

MAX_NAME_CHARS = 255

T = TypeVar("T")


class UploadForm(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the form."""

    file: Annotated[str, Meta(description="JSON lines, or an image", extra_json_schema={"format": "binary"})]
    purpose: Purpose
    expires_after_anchor: Literal["created_at"] | msgspec.UnsetType = msgspec.field(
        name="expires_after[anchor]", default=msgspec.UNSET
    )
    expires_after_seconds: KeepSeconds | msgspec.UnsetType = msgspec.field(
        name="expires_after[seconds]", default=msgspec.UNSET
    )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list."""

    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileList(Page, frozen=True, kw_only=True):
    data: list[FileRecord]


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class StoreApi:
    """`store` is `None` if the server keeps no batches: then everything is refused."""

    def __init__(self, store: BatchStore | None):
        self._sent_store = store

    @property
    def _store(self) -> BatchStore:
        """Raises `RequestError` (404) if there is none."""
        if self._sent_store is None:
            raise not_found("this server keeps no files and batches: start it with --batch-dir DIR", "no_batch_dir")
        return self._sent_store


class FilesApi(StoreApi):
    def __init__(self, store: BatchStore | None, max_file_bytes: int):
        super().__init__(store)
        self._max_file_bytes = max_file_bytes
        self._parsing = asyncio.Lock()
        """One thread parses at a time, to leave CPU time for this process's other work."""

    async def upload(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 400, 408, 413 (the file or the store would be too large), 415, 507."""
        store = self._store
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_file_bytes + FORM_BYTES:
            raise file_too_large(self._max_file_bytes)
        upload = await on_disk(store.begin_upload)
        try:
            form = FormParser(request.headers.get("content-type", ""), upload, self._max_file_bytes)
            if length.isdecimal():
                await on_disk(partial(upload.reserve, int(length)))
            await self._read(request, form)
            checked = _check_form(form)
            key = client_of(request).key
            return JsonReply(await on_disk(lambda: store.add_file(upload, *checked, key)))
        finally:
            await run_whole(upload.close)

    async def _read(self, request: Request, form: FormParser) -> None:
        begin_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(begin_s + UPLOAD_TIMEOUT_S):
                pieces = request.stream()
                while True:
                    async with asyncio.timeout(UPLOAD_IDLE_S):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    async with self._parsing:
                        await on_disk(partial(form.feed, piece))
        except TimeoutError:
            message = f"the file must arrive within {UPLOAD_TIMEOUT_S:.0f} s, with no pause over {UPLOAD_IDLE_S:.0f} s"
            raise RequestError(ErrorInfo(408, message)) from None
        form.end()

    async def list_files(self, request: Request) -> JsonReply:
        """Raises `RequestError` (400)."""
        query = read_query(request, "purpose", "limit", "order", "after")
        purpose = query.get("purpose")
        records = await on_disk(lambda: list(self._store.list_files(client_of(request))))
        if query.get("order") == "asc":
            records.reverse()
        elif query.get("order", "desc") != "desc":
            raise bad_request(f"order must be asc or desc, got {query['order'][:60]!r}", "order")
        found = [record for record in records if purpose in (None, record.purpose)]
        return JsonReply(FileList(**page_of(found, query, MAX_FILES, MAX_FILES)))

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        return JsonReply(await self._find(request))

    async def content(self, request: Request) -> FileReply:
        """Raises `RequestError` (404)."""
        record = await self._find(request)
        return FileReply(self._store.content(record.id), media_type="application/jsonl")

    async def delete(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        file_id: str = request.path_params["id"]
        await on_disk(partial(self._store.delete_file, file_id, client_of(request)))
        return JsonReply(FileDeleted(file_id))

    async def _find(self, request: Request) -> FileRecord:
        """Raises `RequestError` (404)."""
        return await on_disk(partial(self._store.find_file, request.path_params["id"], client_of(request)))


def client_of(request: Request) -> Client:
    return trace_of(request.scope).client


def read_query(request: Request, *names: str) -> dict[str, str]:
    """Returns what the query gives. Raises `RequestError` (400) for names other than `names`."""
    query = dict(request.query_params)
    for name in query:
        if name not in names:
            raise bad_request(f"{quoted(name)} is no parameter here: {', '.join(names)} are", name[:60])
    return query


def page_of(records: Iterable[Any], query: dict[str, str], default: int, most: int) -> dict[str, Any]:
    """Returns the fields of a `Page` with the records after the one that the query names. Raises `RequestError`."""
    limit = read_count(query, "limit", default, most)
    after = query.get("after")
    if after:
        records = itertools.islice(itertools.dropwhile(lambda record: record.id != after, records), 1, None)
    found = list(itertools.islice(records, limit + 1))
    shown = found[:limit]
    first_id, last_id = (shown[0].id, shown[-1].id) if shown else (None, None)
    return {"data": shown, "has_more": len(found) > limit, "first_id": first_id, "last_id": last_id}


async def on_disk(function: Callable[[], T]) -> T:
    """Runs `function` in a thread to its end; returns its result. Raises `RequestError` (507) if the disk is full."""
    try:
        return await run_whole(function)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        message = f"the disk of --batch-dir is full ({error.strerror}): nothing was stored; free space and try again"
        raise RequestError(ErrorInfo(507, message, "server_error", code="disk_full")) from None


def _check_form(form: FormParser) -> tuple[str, Purpose, int]:
    """Returns the file's name, purpose, and lifetime in seconds. Raises `RequestError` (400)."""
    try:
        parts = msgspec.convert(form.fields, UploadForm, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"the form is wrong: {error}; it takes file, purpose and expires_after") from None
    if form.filename is None or form.file_field != "file":
        raise bad_request("file must be a file: it has no filename", "file")
    keep_s = parts.expires_after_seconds
    name = Path(form.filename or "batch.jsonl").name[:MAX_NAME_CHARS]
    return name, parts.purpose, KEEP_S if isinstance(keep_s, msgspec.UnsetType) else keep_s
