"""The operator's endpoints, which require a key and a client on the server's own machine."""

from functools import partial
from typing import Annotated

from msgspec import Meta

from frontend.api.operate.admin import AdminApi, ProcessesReply, RestartReply, SnapshotReply
from frontend.api.operate.profile import ProfileApi, ProfileBegun, ProfileFile
from frontend.http.endpoint import Endpoint, Name, Parameter

_GET = partial(Endpoint, tag="administration", access="operator", errors=(404, 409, 504))
_POST = partial(_GET, method="POST")

PROCESS = Parameter("path", "process", Name, "A name as in `/admin/processes`.")
TIMEOUT = Parameter(
    "query",
    "timeout_s",
    Annotated[float, Meta(ge=0)],
    "Seconds that running requests may take to end before they continue elsewhere or in the new process; by default "
    "those of a scheduler continue at once.",
)
ALL = Parameter("query", "all", bool, "Replace all processes of this kind, one after the other.")


def administering(admin: AdminApi, profile: ProfileApi) -> list[Endpoint]:
    """Returns the endpoints of commands and profiles."""
    restart = "Replace a process by a new one; running requests continue"
    snapshot = "Write a snapshot of the server's state to a directory on its machine"
    return [
        _GET("/admin/processes", admin.processes, "Every process with its state, CPU and memory", ProcessesReply),
        _POST("/admin/restart/{process}", admin.restart, restart, RestartReply, parameters=(PROCESS, TIMEOUT, ALL)),
        _POST("/admin/snapshot", admin.snapshot, snapshot, SnapshotReply),
        _POST("/start_profile", profile.start, "Begin a profile of all processes", ProfileBegun),
        _POST("/stop_profile", profile.stop, "End the profile and merge it into one trace", ProfileFile),
    ]
