"""`/admin/…` and `/…_profile`: the operator's commands over HTTP, the same as those of `launch.py`."""

import asyncio
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.http.endpoint import Endpoint, Name, Parameter
from frontend.http.query import parse_number
from frontend.http.responses import JsonReply
from frontend.links.launcher import Launcher
from messages.control import admin
from messages.control.processes import kind_of
from messages.errors import ErrorInfo, RequestError, bad_request, quoted

STATUSES = {"unknown": 404, "busy": 409, "impossible": 400, "failed": 500, "timeout": 504}
"""HTTP statuses by failure reason."""

ANSWER_TIMEOUT_S = 15.0
SNAPSHOT_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = 3600.0
"""An upper bound; the launcher has its own limit for each part of a restart."""

PROFILE_TIMEOUT_S = 60.0
MERGE_TIMEOUT_S = 300.0
MERGE = (sys.executable, "-P", "-m", "supervisor.profiles.merge")
"""Runs as a separate process: it takes seconds, which would block the event loop."""

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


class ProcessesReply(msgspec.Struct, frozen=True):
    """`scaling` is set if the number of engines is adjusted automatically (`--max-engines`).

    `memory_bytes`: the memory of all processes together, with weights and KV cache; what they share counts once.
    """

    processes: tuple[admin.ProcessInfo, ...]
    scaling: admin.Scaling | None = None
    memory_bytes: int = 0


class RestartReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`done`, or for a frontend `begun`: a description of what has been done so far."""

    done: str | None = None
    begun: str | None = None


class SnapshotReply(msgspec.Struct, frozen=True):
    directory: str


class ProfileBegun(msgspec.Struct, frozen=True):
    """The processes that are being profiled."""

    processes: list[str]


class ProfileFile(msgspec.Struct, frozen=True):
    """The trace, on the server's machine."""

    file: str
    processes: list[str]


class AdminApi:
    def __init__(self, launcher: Launcher, port: int):
        self._launcher = launcher
        self._port = port

    async def processes(self, request: Request) -> JsonReply:
        """Returns every process with its state, CPU and memory, as `launch.py ps` shows them."""
        result = await self._ask(admin.ListProcesses(), ANSWER_TIMEOUT_S)
        assert isinstance(result, admin.ProcessList)
        return JsonReply(ProcessesReply(result.processes, result.scaling, result.memory_bytes))

    async def restart(self, request: Request) -> JsonReply:
        """Replaces a process, or all of its kind, and replies when that is done.

        A frontend replies as soon as its successor accepts connections: the old frontend waits for its connections to
        close, and this is one of them.
        """
        name = request.path_params["process"]
        is_for_all = request.query_params.get("all", "false").lower() in ("true", "1")
        command = admin.RestartProcess(name, _timeout_s(request.query_params.get("timeout_s")), is_for_all)
        result = await self._ask(command, RESTART_TIMEOUT_S, until_progress=kind_of(name) == "frontend")
        assert isinstance(result, admin.Done | admin.Progress)
        return JsonReply(
            RestartReply(done=result.text) if isinstance(result, admin.Done) else RestartReply(begun=result.text)
        )

    async def snapshot(self, request: Request) -> JsonReply:
        """Writes a snapshot of the server's state to a directory on its machine."""
        result = await self._ask(admin.TakeSnapshot(), SNAPSHOT_TIMEOUT_S)
        assert isinstance(result, admin.Done)
        return JsonReply(SnapshotReply(result.text))

    async def start_profile(self, request: Request) -> JsonReply:
        """Begins a profile of all serving processes. Raises `RequestError`, for example if one is running already."""
        return JsonReply(ProfileBegun(sorted(await self._instruct(admin.StartProfile()))))

    async def stop_profile(self, request: Request) -> JsonReply:
        """Ends the profile and replies with the path of the merged trace once it exists.

        The files are written to the directory for temporary files and are not deleted.
        """
        texts = await self._instruct(admin.StopProfile())
        stamp = time.strftime("%Y%m%d-%H%M%S")
        out = _new_file(f"sluice-profile-{self._port}-{stamp}-")
        merge = await asyncio.create_subprocess_exec(
            *MERGE, "--out", str(out), *texts.values(), stdin=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(MERGE_TIMEOUT_S):
                code = await merge.wait()
        except TimeoutError:
            merge.kill()
            code = -1
        if code:
            out.unlink(missing_ok=True)
            raise RequestError(ErrorInfo(500, "the profiles could not be merged; see the log", "server_error"))
        return JsonReply(ProfileFile(str(out), sorted(texts)))

    async def _instruct(self, command: admin.ProcessCommand) -> dict[str, str]:
        """Returns the answers of the processes that carried out `command`. Raises `RequestError` if none did."""
        result = await self._ask(admin.InstructProcesses((), command, PROFILE_TIMEOUT_S), PROFILE_TIMEOUT_S)
        assert isinstance(result, admin.ProcessResults)
        texts = {name: one.text for name, one in result.results.items() if isinstance(one, admin.Acknowledged)}
        if not texts:
            reasons = [
                f"{name}: {one.message}" for name, one in result.results.items() if isinstance(one, admin.Failed)
            ]
            raise RequestError(ErrorInfo(409, "; ".join(reasons), "command_error", code="failed"))
        return texts

    async def _ask(
        self, command: admin.AdminCommand, timeout_s: float, *, until_progress: bool = False
    ) -> admin.Result:
        """Returns the result of `command`, with `until_progress` its first progress.

        Raises `RequestError` if it failed.
        """
        result = await self._launcher.ask(command, timeout_s, until_progress=until_progress)
        if isinstance(result, admin.Failed):
            raise RequestError(ErrorInfo(STATUSES[result.reason], result.message, "command_error", code=result.reason))
        return result


def _timeout_s(text: str | None) -> float | None:
    """Raises `RequestError` (400) if `text` is not a time."""
    if text is None:
        return None
    value = parse_number(text)
    if not 0 <= value < float("inf"):
        raise bad_request(f"timeout_s must be a number of seconds, got {quoted(text)}", "timeout_s")
    return value


def _new_file(prefix: str) -> Path:
    """Returns a new empty file that only this user can read."""
    descriptor, name = tempfile.mkstemp(".json", prefix)
    os.close(descriptor)
    return Path(name)


def administering(api: AdminApi) -> list[Endpoint]:
    """Returns the endpoints of commands and profiles."""
    restart = "Replace a process by a new one; running requests continue"
    snapshot = "Write a snapshot of the server's state to a directory on its machine"
    return [
        _GET("/admin/processes", api.processes, "Every process with its state, CPU and memory", ProcessesReply),
        _POST("/admin/restart/{process}", api.restart, restart, RestartReply, parameters=(PROCESS, TIMEOUT, ALL)),
        _POST("/admin/snapshot", api.snapshot, snapshot, SnapshotReply),
        _POST("/start_profile", api.start_profile, "Begin a profile of all processes", ProfileBegun),
        _POST("/stop_profile", api.stop_profile, "End the profile and merge it into one trace", ProfileFile),
    ]
