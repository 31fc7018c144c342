"""Uploads: their form however it is cut into pieces, and a disk that is full or slow."""

import asyncio
import errno
import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from extras.batches import files_api as files
from extras.batches.files_api import FilesApi
from extras.batches.store import BatchStore
from frontend.http.endpoint import Endpoint
from frontend.http.in_process import Reply
from frontend.http.responses import error_reply
from frontend.requests.trace import RequestTrace

CONTENT = b"\r\n--line\r\n-" + bytes(range(256)) + b"\r\n--"
FORM = b"".join(
    (
        b'--line\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
        b'--line\r\ncontent-disposition: form-data; filename="../\xc3\xa9.jsonl"; name="file"\r\n',
        b"Content-Type: application/jsonl\r\n\r\n" + CONTENT.replace(b"--line", b"--lime") + b"\r\n--line--\r\n",
    )
)


@pytest.fixture
def api(tmp_path: Path) -> FilesApi:
    return FilesApi(BatchStore(tmp_path / "batches", 100_000), 1000)


def post(api: FilesApi, *pieces: bytes, stays_open: bool = False, **headers: str) -> Reply:
    """The reply to an upload whose body arrives in these pieces."""
    provided = {"content-type": "multipart/form-data; boundary=line", **headers}
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in provided.items()]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/files", "headers": lines}
    scope |= {"query_string": b"", "scheme": "http", "http_version": "1.1", "client": None, "server": None}
    trace = scope["sluice.trace"] = RequestTrace(scope)
    left, written = list(pieces), bytearray()

    async def receive() -> MutableMapping[str, Any]:
        if not left and stays_open:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or stays_open}

    async def send(message: MutableMapping[str, Any]) -> None:
        written.extend(message.get("body", b""))

    async def run() -> None:
        try:
            response: Any = await api.upload(Request(scope, receive))
        except Exception as error:
            response = error_reply(error, "POST", "/v1/files", Endpoint("/v1/files", api.upload, "").error_form)
        left.append(b"")
        await response(scope, receive, send)

    asyncio.run(run())
    return Reply(trace.status, trace.request_id, bytes(written))


def message(reply: Reply) -> str:
    return json.loads(reply.body)["error"]["message"]


def stored(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "batches" / "files").iterdir())


@pytest.mark.parametrize("size", [1, 7, 64, len(FORM)])
def test_a_form_in_pieces(api: FilesApi, tmp_path: Path, size: int):
    reply = post(api, *(FORM[start : start + size] for start in range(0, len(FORM), size)))
    record = json.loads(reply.body)
    assert (reply.status, record["filename"], record["bytes"]) == (200, "é.jsonl", len(CONTENT))
    (content,) = (tmp_path / "batches" / "files").glob("*.jsonl")
    assert content.read_bytes() == CONTENT.replace(b"--line", b"--lime")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (FORM[:-20], "ends before its last boundary"),
        (b"--other\r\n", "cannot be read"),
        (b"--line\r\nContent-Disposition: form-data\r\n\r\nx\r\n--line--", "no name"),
        (b"--line\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n" * 20, "more than 9 parts"),
        (b"--line\r\nContent-Disposition: form-data; name=a\r\n\r\n" + b"x" * 70_000, "65536 bytes"),
        (FORM.replace(b"\r\n--line--", b"x" * 1000), "the file is larger than"),
    ],
)
def test_a_form_that_is_none(api: FilesApi, tmp_path: Path, form: bytes, expected: str):
    assert expected in message(post(api, form))
    assert not stored(tmp_path)


def test_what_is_announced_too_large_is_not_read(api: FilesApi):
    assert "the file is larger than" in message(post(api, stays_open=True, content_length="1000000"))


def test_an_upload_that_stops_is_ended(api: FilesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "UPLOAD_IDLE_S", 0.01)
    reply = post(api, FORM[:100], stays_open=True)
    assert (reply.status, stored(tmp_path)) == (408, [])


@pytest.mark.parametrize("name", ["pwrite", "fsync", "ftruncate"])
def test_a_full_disk_is_notified(api: FilesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, fail)
    reply = post(api, FORM)
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (507, "disk_full")
    assert "free space" in message(reply)
    assert not stored(tmp_path)
