"""The part of the route table that is about batches and their files."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from frontend.api.batches import MAX_LIMIT, BatchApi, BatchBody, BatchList
from frontend.api.files import FORM_TYPE, MAX_FILES_SHOWN, FileDeleted, FileList, FilesApi, UploadForm
from frontend.batches.records import BatchRecord, FileRecord
from frontend.http.endpoint import Endpoint, Parameter

ID = Parameter(name="id", place="path", schema=Annotated[str, Meta(min_length=1)], description="The id.")
AFTER = Parameter(name="after", place="query", schema=str, description="Only what follows the one with this id.")


def _limit(most: int) -> Parameter:
    schema = Annotated[int, Meta(ge=1, le=most)]
    return Parameter(name="limit", place="query", schema=schema, description="The most to show.")


FILE_QUERY = (
    AFTER,
    _limit(MAX_FILES_SHOWN),
    Parameter(name="purpose", place="query", schema=str, description="Only files of this purpose."),
    Parameter(
        name="order", place="query", schema=str, description="desc, the newest first (if it is not given), or asc."
    ),
)
EXAMPLE = {
    "input_file_id": "file-18720adf6a4c14f05f1c2b3a",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


def batching(files: FilesApi, batches: BatchApi) -> list[Endpoint]:
    """Returns the endpoints of files and batches."""
    return [*_of_files(files), *_of_batches(batches)]


def _of_files(api: FilesApi) -> list[Endpoint]:
    text = "Upload a file of requests for a batch"
    return [
        _endpoint("POST", "/v1/files", api.upload, text, FileRecord, body=UploadForm, body_type=FORM_TYPE),
        _endpoint("GET", "/v1/files", api.list_files, "The files", FileList, parameters=FILE_QUERY),
        _endpoint("GET", "/v1/files/{id}", api.show, "One file", FileRecord, parameters=(ID,)),
        _endpoint("DELETE", "/v1/files/{id}", api.delete, "Delete a file", FileDeleted, parameters=(ID,)),
        _endpoint("GET", "/v1/files/{id}/content", api.content, "The content of a file", None, parameters=(ID,)),
    ]


def _of_batches(api: BatchApi) -> list[Endpoint]:
    create = _endpoint(
        "POST", "/v1/batches", api.create, "Answer the requests of a file when there is time", BatchRecord
    )
    query = (AFTER, _limit(MAX_LIMIT))
    cancel = _endpoint(
        "POST", "/v1/batches/{id}/cancel", api.cancel, "End a batch; what is answered stays", BatchRecord
    )
    return [
        msgspec.structs.replace(create, body=BatchBody, errors=(404, 429), examples={"chats": EXAMPLE}),
        _endpoint("GET", "/v1/batches", api.list_batches, "The batches, the newest first", BatchList, parameters=query),
        _endpoint("GET", "/v1/batches/{id}", api.show, "One batch", BatchRecord, parameters=(ID,)),
        msgspec.structs.replace(cancel, parameters=(ID,), errors=(404, 409)),
    ]


def _endpoint(method: Any, path: str, run: Any, summary: str, reply: Any, **more: Any) -> Endpoint:
    fields: dict[str, Any] = {"errors": (404,), "tag": "batches", **more}
    return Endpoint(method=method, path=path, run=run, summary=summary, reply=reply, **fields)
