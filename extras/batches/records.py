"""The records of batches and files, on disk and for clients: OpenAI's objects."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from extras.batches.lines import LineError
from frontend.requests.client import Client

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
Ending = Literal["completed", "expired", "cancelled"]
KeepSeconds = Annotated[int, Meta(ge=3600, le=2_592_000)]
"""How long a file may stay: from an hour to 30 days."""

Purpose = Literal["batch", "vision", "user_data"]
"""What a client uploads: the requests of a batch, or (the last two) images that requests name by the file's id."""

OPEN = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class OwnedRecord(msgspec.Struct, frozen=True, kw_only=True):
    key: str | msgspec.UnsetType = msgspec.UNSET
    """The name of the key that it belongs to, if that has one."""

    def belongs_to(self, client: Client) -> bool:
        """True if the client may see it."""
        return client.sees(self.key or "")


class FileRecord(OwnedRecord, frozen=True, kw_only=True):
    """Times are in seconds since 1970."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose | Literal["batch_output"]
    status: Literal["processed"] = "processed"


class BatchErrors(msgspec.Struct, frozen=True):
    """Why a batch has failed: the first of its bad lines."""

    data: tuple[LineError, ...]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class ExpiresAfter(msgspec.Struct, frozen=True):
    """When the result files of a batch are to go."""

    seconds: KeepSeconds
    anchor: Literal["created_at"] = "created_at"


class BatchRecord(OwnedRecord, frozen=True, kw_only=True):
    """Times are in seconds since 1970, each that of the status with its name."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: Mapping[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    def become(self, status: BatchStatus, now_s: int, **changes: Any) -> "BatchRecord":
        """Returns the batch in another status since `now_s`."""
        return msgspec.structs.replace(self, status=status, **{f"{status}_at": now_s}, **changes)
