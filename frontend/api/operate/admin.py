"""`/admin/…`: the operator's commands over HTTP, the same as those of `launch.py`."""

import msgspec
from starlette.requests import Request

from frontend.http.query import parse_number
from frontend.http.responses import JsonReply
from frontend.links.launcher import Launcher
from messages.control.admin import (
    AdminCommand,
    Done,
    Failed,
    ListProcesses,
    ProcessInfo,
    ProcessList,
    Progress,
    RestartProcess,
    Result,
    Scaling,
    TakeSnapshot,
)
from messages.control.processes import kind_of
from messages.errors import ErrorInfo, RequestError, bad_request

STATUSES = {"unknown": 404, "busy": 409, "impossible": 400, "failed": 500, "timeout": 504}
"""HTTP statuses by failure reason."""

ANSWER_TIMEOUT_S = 15.0
SNAPSHOT_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = 3600.0
"""An upper bound; the launcher has its own limit for each part of a restart."""


class ProcessesReply(msgspec.Struct, frozen=True):
    """`scaling` is set if the number of engines is adjusted automatically (`--max-engines`)."""

    processes: tuple[ProcessInfo, ...]
    scaling: Scaling | None = None


class RestartReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`done`, or for a frontend `begun`: a description of what has been done so far."""

    done: str | None = None
    begun: str | None = None


class SnapshotReply(msgspec.Struct, frozen=True):
    directory: str


class AdminApi:
    def __init__(self, launcher: Launcher):
        self._launcher = launcher

    async def processes(self, request: Request) -> JsonReply:
        """Returns every process with its state, CPU and memory, as `launch.py ps` shows them."""
        result = await ask(self._launcher, ListProcesses(), ANSWER_TIMEOUT_S)
        assert isinstance(result, ProcessList)
        return JsonReply(ProcessesReply(result.processes, result.scaling))

    async def restart(self, request: Request) -> JsonReply:
        """Replaces a process, or all of its kind, and replies when that is done.

        A frontend replies as soon as its successor accepts connections: the old frontend waits for its connections to
        close, and this is one of them.
        """
        name = request.path_params["process"]
        is_for_all = request.query_params.get("all", "false").lower() in ("true", "1")
        command = RestartProcess(name, _timeout_s(request.query_params.get("timeout_s")), is_for_all)
        result = await ask(self._launcher, command, RESTART_TIMEOUT_S, until_progress=kind_of(name) == "frontend")
        assert isinstance(result, Done | Progress)
        return JsonReply(
            RestartReply(done=result.text) if isinstance(result, Done) else RestartReply(begun=result.text)
        )

    async def snapshot(self, request: Request) -> JsonReply:
        """Writes a snapshot of the server's state to a directory on its machine."""
        result = await ask(self._launcher, TakeSnapshot(), SNAPSHOT_TIMEOUT_S)
        assert isinstance(result, Done)
        return JsonReply(SnapshotReply(result.text))


def _timeout_s(text: str | None) -> float | None:
    """Raises `RequestError` (400) if `text` is not a time."""
    if text is None:
        return None
    value = parse_number(text)
    if not 0 <= value < float("inf"):
        raise bad_request(f"timeout_s must be a number of seconds, got {text[:60]!r}", "timeout_s")
    return value


async def ask(launcher: Launcher, command: AdminCommand, timeout_s: float, *, until_progress: bool = False) -> Result:
    """Returns the result of `command`, with `until_progress` its first progress. Raises `RequestError` if it failed."""
    result = await launcher.ask(command, timeout_s, until_progress=until_progress)
    if isinstance(result, Failed):
        raise RequestError(ErrorInfo(STATUSES[result.reason], result.message, "command_error", code=result.reason))
    return result
