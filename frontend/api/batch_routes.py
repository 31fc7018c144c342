"""The part of the route table that is about batches and their files."""

from typing import Annotated, Any

from msgspec import Meta

from frontend.api.batches import MAX_LIMIT, BatchApi, BatchBody, BatchList
from frontend.api.files import FORM_TYPE, MAX_FILES_SHOWN, FileDeleted, FileList, FilesApi, UploadForm
from frontend.batches.records import BatchRecord, FileRecord
from frontend.http.endpoint import Endpoint, Parameter

ID = Parameter(name="id", place="path", schema=Annotated[str, Meta(min_length=1)], description="The id.")
AFTER = Parameter(name="after", place="query", schema=str, description="Only what follows the one with this id.")


def batching(files: FilesApi, batches: BatchApi) -> list[Endpoint]:
    """Returns the endpoints of files and batches."""
    return [
        _endpoint(
            "POST",
            "/v1/files",
            files.upload,
            "Upload a file of requests for a batch",
            FileRecord,
            body=UploadForm,
            body_type=FORM_TYPE,
        ),
        _endpoint(
            "GET",
            "/v1/files",
            files.list_files,
            "The files, the newest first",
            FileList,
            parameters=(
                AFTER,
                _limit(MAX_FILES_SHOWN),
                Parameter(name="purpose", place="query", schema=str, description="Only files of this purpose."),
                Parameter(name="order", place="query", schema=str, description="desc or asc, by creation."),
            ),
        ),
        _endpoint("GET", "/v1/files/{id}", files.show, "One file", FileRecord, parameters=(ID,)),
        _endpoint("DELETE", "/v1/files/{id}", files.delete, "Delete a file", FileDeleted, parameters=(ID,)),
        _endpoint("GET", "/v1/files/{id}/content", files.content, "The content of a file", None, parameters=(ID,)),
        _endpoint(
            "POST",
            "/v1/batches",
            batches.create,
            "Answer the requests of a file when there is time",
            BatchRecord,
            body=BatchBody,
            errors=(404, 429),
            examples={
                "chats": {
                    "input_file_id": "file-18720adf6a4c14f05f1c2b3a",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
            },
        ),
        _endpoint(
            "GET",
            "/v1/batches",
            batches.list_batches,
            "The batches, the newest first",
            BatchList,
            parameters=(AFTER, _limit(MAX_LIMIT)),
        ),
        _endpoint("GET", "/v1/batches/{id}", batches.show, "One batch", BatchRecord, parameters=(ID,)),
        _endpoint(
            "POST",
            "/v1/batches/{id}/cancel",
            batches.cancel,
            "End a batch; what is answered stays",
            BatchRecord,
            parameters=(ID,),
            errors=(404, 409),
        ),
    ]


def _limit(most: int) -> Parameter:
    schema = Annotated[int, Meta(ge=1, le=most)]
    return Parameter(name="limit", place="query", schema=schema, description="The most to show.")


def _endpoint(method: Any, path: str, run: Any, summary: str, reply: Any, **more: Any) -> Endpoint:
    fields: dict[str, Any] = {"errors": (404,), "tag": "batches", **more}
    return Endpoint(method=method, path=path, run=run, summary=summary, reply=reply, **fields)
