"""The part of the route table that is about batches and their files."""

from functools import partial

from extras.batches.batches_api import MAX_LIMIT, BatchApi, BatchBody, BatchList
from extras.batches.files_api import FileDeleted, FileList, FilesApi, UploadForm
from extras.batches.form_parser import FORM_TYPE
from extras.batches.records import BatchRecord, FileRecord
from extras.batches.store import MAX_FILES
from frontend.http.endpoint import Endpoint, Name, Parameter, limit_of

_BATCHES = partial(Endpoint, tag="batches", errors=(404,))
_POST = partial(_BATCHES, method="POST")
_ONE = partial(_BATCHES, parameters=(Parameter("path", "id", Name, "The id."),))

AFTER = Parameter("query", "after", str, "Only what follows the one with this id.")
FILE_QUERY = (
    AFTER,
    limit_of(MAX_FILES, "The most to show."),
    Parameter("query", "purpose", str, "Only files of this purpose."),
    Parameter("query", "order", str, "desc, the newest first (if it is not given), or asc."),
)
BATCH_QUERY = (AFTER, limit_of(MAX_LIMIT, "The most to show."))
EXAMPLE = {
    "input_file_id": "file-18720adf6a4c14f05f1c2b3a",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}
EXAMPLES = {"chats": EXAMPLE}


def batching(files: FilesApi, batches: BatchApi) -> list[Endpoint]:
    """Returns the endpoints of files and batches."""
    upload, create = "Upload a file of requests for a batch", "Answer the requests of a file when there is time"
    newest, end = "The batches, the newest first", "End a batch; what is answered stays"
    return [
        _POST("/v1/files", files.upload, upload, FileRecord, body=UploadForm, body_type=FORM_TYPE),
        _BATCHES("/v1/files", files.list_files, "The files", FileList, parameters=FILE_QUERY),
        _ONE("/v1/files/{id}", files.show, "One file", FileRecord),
        _ONE("/v1/files/{id}", files.delete, "Delete a file", FileDeleted, method="DELETE"),
        _ONE("/v1/files/{id}/content", files.content, "The content of a file"),
        _POST("/v1/batches", batches.create, create, BatchRecord, body=BatchBody, errors=(404, 429), examples=EXAMPLES),
        _BATCHES("/v1/batches", batches.list_batches, newest, BatchList, parameters=BATCH_QUERY),
        _ONE("/v1/batches/{id}", batches.show, "One batch", BatchRecord),
        _ONE("/v1/batches/{id}/cancel", batches.cancel, end, BatchRecord, method="POST", errors=(404, 409)),
    ]
