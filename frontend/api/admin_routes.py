"""The endpoints of the operator, which answer programs with a key on the server's own machine."""

from functools import partial
from typing import Annotated

from msgspec import Meta

from frontend.api.admin import AdminApi, ProcessesReply, RestartReply, SnapshotReply
from frontend.api.profile import ProfileApi, ProfileBegun, ProfileFile
from frontend.http.endpoint import Endpoint, Parameter

_OPERATOR = partial(Endpoint, tag="administration", access="operator", errors=(404, 409, 504))

PROCESS = Parameter(
    name="process",
    place="path",
    schema=Annotated[str, Meta(min_length=1)],
    description="A name as in `/admin/processes`.",
)
TIMEOUT = Parameter(
    name="timeout_s",
    place="query",
    schema=Annotated[float, Meta(ge=0)],
    description="Seconds that running requests may take to end before they go on in the new process.",
)


def administering(admin: AdminApi, profile: ProfileApi) -> list[Endpoint]:
    """Returns the endpoints of commands and profiles."""
    return [
        _OPERATOR(
            method="GET",
            path="/admin/processes",
            run=admin.processes,
            summary="Every process with its state, CPU and memory",
            reply=ProcessesReply,
        ),
        _OPERATOR(
            method="POST",
            path="/admin/restart/{process}",
            run=admin.restart,
            summary="Replace a process by a new one; running requests go on",
            reply=RestartReply,
            parameters=(PROCESS, TIMEOUT),
        ),
        _OPERATOR(
            method="POST",
            path="/admin/snapshot",
            run=admin.snapshot,
            summary="Write all that can be known of the server into a directory on its machine",
            reply=SnapshotReply,
        ),
        _OPERATOR(
            method="POST",
            path="/start_profile",
            run=profile.start,
            summary="Begin a profile of all processes",
            reply=ProfileBegun,
        ),
        _OPERATOR(
            method="POST",
            path="/stop_profile",
            run=profile.stop,
            summary="End the profile and merge it into one trace",
            reply=ProfileFile,
        ),
    ]
