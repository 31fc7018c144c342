"""`/start_profile` and `/stop_profile`: a profile of all processes, merged into one file for a trace viewer."""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from starlette.requests import Request

from frontend.api.operate.admin import ask
from frontend.http.responses import JsonReply
from frontend.links.launcher import Launcher
from messages.control.admin import (
    Acknowledged,
    Failed,
    InstructProcesses,
    ProcessCommand,
    ProcessResults,
    StartProfile,
    StopProfile,
)
from messages.errors import ErrorInfo, RequestError

TIMEOUT_S = 60.0
MERGE_TIMEOUT_S = 300.0
MERGE = (sys.executable, "-P", "-m", "supervisor.profiles.merge")
"""Runs as a separate process: it takes seconds, which would block the event loop."""


class ProfileBegun(msgspec.Struct, frozen=True):
    """The processes that are being profiled."""

    processes: list[str]


class ProfileFile(msgspec.Struct, frozen=True):
    """The trace, on the server's machine."""

    file: str
    processes: list[str]


class ProfileApi:
    """The files are written to the directory for temporary files and are not deleted."""

    def __init__(self, launcher: Launcher, port: int):
        self._launcher = launcher
        self._port = port

    async def start(self, request: Request) -> JsonReply:
        """Begins a profile of all serving processes. Raises `RequestError`, for example if one is running already."""
        return JsonReply(ProfileBegun(sorted(await self._instruct(StartProfile()))))

    async def stop(self, request: Request) -> JsonReply:
        """Ends the profile and replies with the path of the merged trace once it exists."""
        texts = await self._instruct(StopProfile())
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

    async def _instruct(self, command: ProcessCommand) -> dict[str, str]:
        """Returns the answers of the processes that carried out `command`. Raises `RequestError` if none did."""
        result = await ask(self._launcher, InstructProcesses((), command, TIMEOUT_S), TIMEOUT_S)
        assert isinstance(result, ProcessResults)
        texts = {name: one.text for name, one in result.results.items() if isinstance(one, Acknowledged)}
        if not texts:
            reasons = [f"{name}: {one.message}" for name, one in result.results.items() if isinstance(one, Failed)]
            raise RequestError(ErrorInfo(409, "; ".join(reasons), "command_error", code="failed"))
        return texts


def _new_file(prefix: str) -> Path:
    """Returns a new empty file that only this user can read."""
    descriptor, name = tempfile.mkstemp(".json", prefix)
    os.close(descriptor)
    return Path(name)
