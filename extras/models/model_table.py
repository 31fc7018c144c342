"""The models as the router knows them: what the host reports, and how far each model's server is."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from extras.models.messages import ModelReport, Models
from extras.models.upstream import UpstreamGoneError, Upstreams
from messages.config.server import Config
from messages.control.processes import FRONTEND
from runtime.adapter_table import read_table

POLL_S, MAX_POLL_S = 0.02, 0.25
"""The first and the longest interval between two questions to a server that starts."""

POLL_SHARE = 0.02
"""Part of the time since the start that an interval may be."""


class ModelState(NamedTuple):
    """The values of llama.cpp's router. `phase` and `fraction` are those of a load, `error` ended the latest one."""

    value: Literal["unloaded", "loading", "loaded"]
    phase: str = ""
    fraction: float | None = None
    error: str = ""


class _Process(msgspec.Struct):
    phase: str = ""
    fraction: float | None = None
    gauges: dict[str, float] = {}


class _Health(msgspec.Struct):
    """The part of `/health` of a model's server that is read here."""

    processes: dict[str, _Process]


class _Server:
    """The server of one model, from its start to its end."""

    def __init__(self, name: str, pid: int):
        self.name = name
        self.pid = pid
        self.url = ""
        self.state = ModelState("loading")
        self.has_served = False
        self.poll: asyncio.Task[None] | None = None


class ModelTable:
    """`on_change` is called after each change, `on_served` and `on_failure` with a model's name at the end of its load,
    and with the error."""

    def __init__(self, upstreams: Upstreams):
        self.upstreams = upstreams
        self._servers: dict[str, _Server] = {}
        self._configs: dict[str, tuple[int, Config]] = {}
        """By file, with the pid of the server when it was read."""
        self.reports: dict[str, ModelReport] = {}
        self.is_known = asyncio.Event()
        self.on_change: Callable[[], object] = bool
        self.on_served: Callable[[str], object] = bool
        self.on_failure: Callable[[str, str], None] = lambda name, error: None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.reports)

    def loaded(self) -> list[str]:
        """Returns the models whose servers serve."""
        return [name for name in self.reports if self.url(name)]

    def url(self, name: str) -> str:
        """Returns the address of the model's server, "" if it does not serve now."""
        server = self._servers.get(name)
        return server.url if server is not None and server.state.value == "loaded" else ""

    def state(self, name: str) -> ModelState:
        server = self._servers.get(name)
        return server.state if server is not None else ModelState("unloaded", error=self.reports[name].error)

    def config(self, name: str) -> Config | None:
        """Returns the configuration of the model's server, `None` as long as its files have not been read."""
        report = self.reports[name]
        described = report.description.config_file if report.description else ""
        own = f"{report.run_dir}/config.json" if self.url(name) else ""
        return self._read_config(own, report.pid) or self._read_config(described, report.pid)

    def _read_config(self, file: str, pid: int) -> Config | None:
        """Returns `None` if the file has just been removed: its server has ended."""
        if file and self._configs.get(file, (None, None))[0] != pid:
            with contextlib.suppress(FileNotFoundError):
                self._configs[file] = pid, msgspec.json.decode(Path(file).read_bytes(), type=Config)
        return self._configs.get(file, (None, None))[1]

    def find(self, requested: str) -> str | None:
        """Returns the model that a client means by a name: its own, another one of it, or that of an adapter."""
        if requested in self.reports:
            return requested
        for name in self.reports:
            if (config := self.config(name)) and requested in (*config.facts.served_names, *find_adapters(config)):
                return name
        return None

    def update(self, models: Models) -> None:
        """Follows the host's reports."""
        self.reports = {report.name: report for report in models.models}
        for name, report in self.reports.items():
            server = self._servers.get(name)
            if server is not None and (report.process == "none" or report.pid != server.pid):
                self._drop(server, report.error)
                server = None
            if report.process != "none" and server is None:
                server = self._servers[name] = _Server(name, report.pid)
            if server is not None and report.url and not server.url:
                server.url = report.url
                self._begin_poll(server)
        self.is_known.set()
        self.on_change()

    async def has_requests(self, name: str) -> bool:
        """True if the server of the model has open requests; False if it does not answer.

        Only its frontend knows at once that the last one has ended.
        """
        _, processes = await self._ask_health(self.url(name))
        return bool(processes.get(FRONTEND, _Process()).gauges.get("requests"))

    async def _ask_health(self, url: str) -> tuple[int, dict[str, _Process]]:
        with contextlib.suppress(UpstreamGoneError, msgspec.DecodeError):
            status, body = await self.upstreams.fetch(url, "/health")
            return status, msgspec.json.decode(body, type=_Health).processes
        return 0, {}

    def suspect(self, name: str, url: str) -> None:
        """Checks a server that has closed a connection: it may have ended, or one of its processes."""
        self.upstreams.forget(url)
        server = self._servers.get(name)
        if server is not None and url == self.url(name):
            self._begin_poll(server)

    def _drop(self, server: _Server, error: str) -> None:
        del self._servers[server.name]
        self.upstreams.forget(server.url)
        if server.poll is not None:
            server.poll.cancel()
        if error and not server.has_served:
            self.on_failure(server.name, error)

    def _begin_poll(self, server: _Server) -> None:
        server.state = ModelState("loading")
        server.poll = asyncio.create_task(self._poll(server))

    async def _poll(self, server: _Server) -> None:
        """Asks the server for its health until it serves."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            status, processes = await self._ask_health(server.url)
            if status == 200:
                break
            starting = [process for process in processes.values() if process.phase]
            for process in sorted(starting, key=lambda process: process.fraction is not None):
                server.state = ModelState("loading", process.phase, process.fraction)
            await asyncio.sleep(min(MAX_POLL_S, POLL_S + POLL_SHARE * (loop.time() - began_s)))
        server.has_served, server.state = True, ModelState("loaded")
        self.on_served(server.name)
        self.on_change()


def find_adapters(config: Config) -> dict[str, str]:
    """Returns the directories of a model's LoRA adapters by their names; before it is loaded, those of its flags."""
    if table := config.facts.adapter_table:
        with contextlib.suppress(FileNotFoundError):  # its server has just ended
            return {name: adapter.path for name, adapter in read_table(table).items()}
    return {name: path for name, _, path in (entry.partition("=") for entry in config.model.lora)}
