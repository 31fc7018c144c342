"""The processes that read models' files: whose are read next, and what that may cost."""

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from extras.models.config import ModelsConfig
from extras.models.description import read_description, write_description
from extras.models.messages import Description
from extras.models.model_server import ModelServer
from runtime.child_process import lower_limit
from runtime.forked_process import fork
from runtime.lifeline import ask_for_death_signal
from supervisor.child import how_it_ended

CPU_S, WALL_S = 60, 120.0
"""What the files of one model may take; a vocabulary of 250,000 takes about 5 s."""

DOWNLOAD_CPU_S = 3600
"""The same with a download, which may take any time."""

MEMORY_BYTES = 4 << 30
"""In addition to what this process has."""

WARN_S = 10.0
MAX_AT_ONCE = 4
"""Only models that requests want are read next to another one."""

Say = Callable[[str, str], None]


@dataclass
class _Reading:
    pid: int
    descriptor: int
    warn_at_s: float
    kill_at_s: float
    fault: str = ""


class Descriptions:
    """`say` shows a warning about a model. All models without a description are read, one after another."""

    def __init__(self, section: ModelsConfig, servers: Mapping[str, ModelServer], show: Say):
        self._section = section
        self._servers = servers
        self._show = show
        self._queue = [name for name, server in servers.items() if server.report.description is None]
        self._requested: set[str] = set()
        """Models in the queue for which requests wait."""
        self._asked: set[str] = set()
        """Models that may be fetched from the hub."""
        self._readings: dict[str, _Reading] = {}

    def want(self, name: str, *, may_fetch: bool) -> None:
        """Reads the model's files, before those that no request waits for."""
        if may_fetch:
            self._asked.add(name)
        self._requested.add(name)
        self._queue = [name, *(other for other in self._queue if other != name)]

    def advance(self, *, may_start: bool) -> None:
        """Notes the readings that have ended, ends those that take too long, and starts the next ones."""
        now_s = time.monotonic()
        for name, reading in tuple(self._readings.items()):
            ended, status = os.waitpid(reading.pid, os.WNOHANG)
            if ended:
                os.close(reading.descriptor)
                del self._readings[name]
                self._record_end(name, reading, os.waitstatus_to_exitcode(status))
            else:
                self._check_time(name, reading, now_s)
        while may_start and (name := self._next()):
            self._queue.remove(name)
            self._requested.discard(name)
            self._start(self._servers[name], now_s)

    @property
    def descriptors(self) -> set[int]:
        """Each becomes readable when a reading ends."""
        return {reading.descriptor for reading in self._readings.values()}

    def due_in_s(self) -> float:
        """Seconds until `advance` is due, even if none of `descriptors` is readable."""
        times_s = (min(reading.warn_at_s, reading.kill_at_s) for reading in self._readings.values())
        return max(0.0, min(times_s, default=inf) - time.monotonic())

    def _next(self) -> str | None:
        if len(self._readings) >= MAX_AT_ONCE:
            return None
        startable = (name for name in self._queue if name not in self._readings)
        return next((name for name in startable if name in self._requested or not self._readings), None)

    def _start(self, server: ModelServer, now_s: float) -> None:
        name, own_pid = server.entry.name, os.getpid()
        may_fetch = name in self._asked

        limit_s = inf if server.entry.is_on_hub and may_fetch else WALL_S

        def read() -> None:
            ask_for_death_signal(own_pid, signal.SIGKILL)
            _limit(CPU_S if limit_s < inf else DOWNLOAD_CPU_S)
            write_description(self._section, server.entry, server.directory, may_fetch=may_fetch)

        (server.directory / "description.json").unlink(missing_ok=True)
        pid = fork(read, f"sluice reads {name}", (0, 2, 2))
        self._readings[name] = _Reading(pid, os.pidfd_open(pid), now_s + min(WARN_S, limit_s), now_s + limit_s)

    def _check_time(self, name: str, reading: _Reading, now_s: float) -> None:
        if now_s >= reading.warn_at_s:
            reading.warn_at_s = inf
            self._show(name, f"its files have been read for {WARN_S:g} s; others are read when a request names them")
        if now_s >= reading.kill_at_s:
            reading.kill_at_s = inf
            reading.fault = f"took over {WALL_S:g} s"
            os.kill(reading.pid, signal.SIGKILL)

    def _record_end(self, name: str, reading: _Reading, code: int) -> None:
        server = self._servers[name]
        description = read_description(server.directory)
        if code:
            fault = f"took over {CPU_S} s of CPU time" if code == -signal.SIGXCPU else how_it_ended(code)
            description = Description(
                error=f"its files cannot be read: the process that read them {reading.fault or fault}"
            )
        if description is not None and description.error:
            self._show(name, f"cannot be served: {description.error}")
        server.record_description(description)


def _limit(cpu_s: int) -> None:
    """Bounds what this process may take; likewise each of its children."""
    data_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    lower_limit(resource.RLIMIT_CPU, cpu_s)
    lower_limit(resource.RLIMIT_DATA, data_bytes + MEMORY_BYTES)
