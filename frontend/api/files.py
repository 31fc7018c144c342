"""`/v1/files`: the files of batches, as OpenAI's API has them."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from frontend.api.requests import read_count
from frontend.batches.records import FileRecord, KeepSeconds
from frontend.batches.store import KEEP_S, BatchStore
from frontend.errors import not_found
from frontend.http.responses import JsonReply
from frontend.requests.trace import REQUEST_ID_HEADER, trace_of
from messages.errors import ErrorInfo, RequestError, bad_request

FORM_TYPE = "multipart/form-data"
MAX_FIELDS = 8
FORM_BYTES = 65536
"""What a form may have beside the file."""

UPLOAD_TIMEOUT_S = 600.0
MAX_NAME_CHARS = 255
MAX_FILES_SHOWN = 10_000


class UploadForm(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the form."""

    file: Annotated[str, Meta(description="a file of JSON lines", extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]
    expires_after_anchor: Literal["created_at"] | msgspec.UnsetType = msgspec.field(
        name="expires_after[anchor]", default=msgspec.UNSET
    )
    expires_after_seconds: KeepSeconds | msgspec.UnsetType = msgspec.field(
        name="expires_after[seconds]", default=msgspec.UNSET
    )


class FileList(msgspec.Struct, frozen=True):
    data: list[FileRecord]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class FilesApi:
    """`store` is `None` where the server keeps no batches: then everything is refused."""

    def __init__(self, store: BatchStore | None, max_file_bytes: int):
        self._given_store = store
        self._max_file_bytes = max_file_bytes

    @property
    def _store(self) -> BatchStore:
        return need_store(self._given_store)

    async def upload(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 400, 413 for a file or a store that would be too large, 408, 415."""
        store = self._store
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            form = await self._read_form(request)
        try:
            upload, keep_s = _check_form(form)
            await asyncio.to_thread(store.check_room, upload.size or 0)
            record = await asyncio.to_thread(_keep, store, upload, keep_s)
        finally:
            await form.close()
        return JsonReply(record)

    async def _read_form(self, request: Request) -> FormData:
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != FORM_TYPE:
            raise RequestError(ErrorInfo(415, f"Content-Type {kind[:60]!r} is not supported, send {FORM_TYPE}"))
        try:
            return await MultiPartParser(
                request.headers, self._bounded(request), max_files=1, max_fields=MAX_FIELDS, max_part_size=FORM_BYTES
            ).parse()
        except MultiPartException as error:
            raise bad_request(f"the form cannot be read: {error.message}") from None

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        num_left = self._max_file_bytes + FORM_BYTES
        async for chunk in request.stream():
            num_left -= len(chunk)
            if num_left < 0:
                message = f"the file is larger than {self._max_file_bytes} bytes (--max-batch-file-mb)"
                raise RequestError(ErrorInfo(413, message, code="file_too_large"))
            yield chunk

    async def list_files(self, request: Request) -> JsonReply:
        """Raises `RequestError` (400)."""
        query = read_query(request, "purpose", "limit", "order", "after")
        purpose = query.get("purpose")
        records = await asyncio.to_thread(lambda: list(self._store.list_files()))
        if query.get("order") == "asc":
            records.reverse()
        elif query.get("order", "desc") != "desc":
            raise bad_request(f"order must be asc or desc, got {query['order'][:60]!r}", "order")
        found = [record for record in records if purpose in (None, record.purpose)]
        shown, has_more = page_of(found, query, MAX_FILES_SHOWN, MAX_FILES_SHOWN)
        return JsonReply(FileList(shown, has_more, *ends_of(shown)))

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        return JsonReply(await asyncio.to_thread(self._store.find_file, request.path_params["id"]))

    async def content(self, request: Request) -> "FileContent":
        """Raises `RequestError` (404)."""
        record = await asyncio.to_thread(self._store.find_file, request.path_params["id"])
        return FileContent(self._store.content(record.id), media_type="application/jsonl")

    async def delete(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        file_id: str = request.path_params["id"]
        await asyncio.to_thread(self._store.delete_file, file_id)
        return JsonReply(FileDeleted(file_id))


class FileContent(FileResponse):
    """An ASGI response: a file, or the part of it that a Range asks for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER, trace.request_id.encode())]
            await send(message)

        try:
            await super().__call__(scope, receive, note)
        except RuntimeError:
            if trace.status:
                raise
            raise HTTPException(404) from None  # deleted meanwhile


def need_store(store: BatchStore | None) -> BatchStore:
    """Raises `RequestError` (404) where there is none."""
    if store is None:
        raise not_found("this server keeps no files and batches: start it with --batch-dir DIR", "no_batch_dir")
    return store


def read_query(request: Request, *names: str) -> dict[str, str]:
    """Returns what the query gives. Raises `RequestError` (400) for names beside `names`."""
    query = dict(request.query_params)
    for name in query:
        if name not in names:
            raise bad_request(f"{name[:60]!r} is no parameter here: {', '.join(names)} are", name[:60])
    return query


def page_of(records: list[Any], query: dict[str, str], default: int, most: int) -> tuple[list[Any], bool]:
    """Returns the records after the one that the query names, and whether there are more. Raises `RequestError`."""
    limit = read_count(query, "limit", default, most)
    after = query.get("after")
    if after:
        records = list(itertools.dropwhile(lambda record: record.id != after, records))[1:]
    return records[:limit], len(records) > limit


def ends_of(records: list[Any]) -> tuple[str | None, str | None]:
    """Returns the first and the last id."""
    return (records[0].id, records[-1].id) if records else (None, None)


def _check_form(form: FormData) -> tuple[UploadFile, int]:
    """Returns the file, and for how many seconds it is to stay. Raises `RequestError` (400)."""
    fields = {name: "" if isinstance(value, UploadFile) else value for name, value in form.items()}
    try:
        parts = msgspec.convert(fields, UploadForm, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"the form is wrong: {error}; it takes file, purpose (batch) and expires_after") from None
    upload = form["file"]
    if not isinstance(upload, UploadFile):
        raise bad_request("file must be a file: it has no filename", "file")
    keep_s = parts.expires_after_seconds
    return upload, KEEP_S if isinstance(keep_s, msgspec.UnsetType) else keep_s


def _keep(store: BatchStore, upload: UploadFile, keep_s: int) -> FileRecord:
    path = store.new_upload()
    try:
        with path.open("xb") as file:
            shutil.copyfileobj(upload.file, file)
        return store.add_file(path, Path(upload.filename or "batch.jsonl").name[:MAX_NAME_CHARS], keep_s)
    finally:
        path.unlink(missing_ok=True)
