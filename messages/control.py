"""The control plane: what a process and its launcher tell each other, apart from the requests."""

from typing import Literal

import msgspec

SCHEMA_VERSION = 2
"""Raised with every change of a struct in this package that an older process could not read."""

ProcessState = Literal["starting", "ready", "busy", "hung", "dead", "restarting"]
"""`restarting`: it is dead and will be started again; `dead`: it will not."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: the first message; the launcher answers `Welcome` or `Refused`."""

    name: str
    pid: int
    schema_version: int


class PhaseReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: what it is doing while it starts; `fraction` of the phase in [0, 1] where it is known."""

    text: str
    fraction: float | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it serves from now on."""


class BootFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it cannot start; `message` is for the operator."""

    message: str


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher, about once a second, from its main loop: it is alive.

    `busy_since_ns`: when the running step began, 0 when idle. `gauges`: sizes of the process's maps and queues by name.
    """

    sent_ns: int
    busy_since_ns: int = 0
    gauges: dict[str, float] = {}


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → launcher: the last request has ended, or the drain's deadline has passed (`num_unfinished` left)."""

    num_unfinished: int = 0


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: it belongs to the run, under this incarnation (1 at first, +1 at each restart)."""

    incarnation: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: it does not belong to the run; it must exit."""

    reason: str


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: accept nothing new, let what runs finish for at most `timeout_s`, then answer `Drained`."""

    timeout_s: float


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: leave the main loop and exit with code 0."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process as the launcher sees it; stamps are `time.monotonic_ns()`, 0 where it has not happened."""

    name: str
    state: ProcessState
    pid: int = 0
    incarnation: int = 0
    phase: str = ""
    fraction: float | None = None
    beat_ns: int = 0
    busy_since_ns: int = 0
    gauges: dict[str, float] = {}
    num_restarts: int = 0
    """How often the launcher has replaced it in this run."""


class ProcessTable(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: every process, at each change of a state and with each beat."""

    processes: tuple[ProcessStatus, ...]


ToLauncher = Hello | PhaseReport | Ready | BootFailed | Beat | Drained
ToProcess = Welcome | Refused | Drain | Stop | ProcessTable
