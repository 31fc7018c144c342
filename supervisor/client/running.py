"""The servers of this user that run now, and which of them an operator means."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from messages.config.server import Config
from messages.errors import BootError, SluiceError
from messages.program import START
from runtime.lifeline import has_launcher
from runtime.run_dir import RunDir

RUN_DIR_FLAG = "--run-dir"
"""Every process but the launcher is started with it, so command lines reveal all run directories."""


class NoServerError(SluiceError):
    """No server runs, or not the requested one."""


class WhichServerError(SluiceError):
    """Several servers run, and the operator has not specified one."""


@dataclass(frozen=True)
class RunningServer:
    """A server with its run directory and its configuration."""

    run_dir: RunDir
    config: Config

    @property
    def text(self) -> str:
        """One line for people: port, model, directory."""
        names = ", ".join(self.config.facts.served_names)
        return f"--port {self.config.http.port:<5}  {names}  (--run-dir {self.run_dir.path})"


def choose_server(run_dir: Path | None, port: int | None) -> RunningServer:
    """Returns the server in `run_dir`, on `port`, or else the only one. Raises `NoServerError`, `WhichServerError`."""
    if run_dir is not None:
        return _open(RunDir(run_dir.absolute()))
    servers = sorted(find_whole_servers(), key=lambda server: server.config.http.port)
    chosen = [server for server in servers if port in (None, server.config.http.port)]
    listing = "\n".join(f"  {server.text}" for server in servers)
    if not servers:
        raise NoServerError(f"no server of this user runs; start one with `{START}`")
    if not chosen:
        raise NoServerError(f"no server of this user runs on port {port}; there are\n{listing}")
    if len(chosen) > 1:
        raise WhichServerError(f"{len(chosen)} servers run; choose one:\n{listing}")
    return chosen[0]


def find_model_server(server: RunningServer, model: str) -> RunningServer:
    """Returns the server of one loaded model, in a `server` of several. Raises `NoServerError`."""
    for each in find_servers():
        if server.run_dir.path in each.run_dir.path.parents and model in each.config.facts.served_names:
            return each
    raise NoServerError(f"no server of a model {model} runs in {server.run_dir.path}: the model may not be loaded")


def find_servers() -> Iterator[RunningServer]:
    """Yields every server of this user whose launcher lives."""
    for path in _run_dirs():
        try:
            yield _open(RunDir(path))
        except (NoServerError, OSError):
            continue


def find_whole_servers() -> list[RunningServer]:
    """Returns the servers of this user, without those of single models in the run directory of a server of several."""
    servers = list(find_servers())
    paths = {server.run_dir.path for server in servers}
    return [server for server in servers if paths.isdisjoint(server.run_dir.path.parents)]


def _open(run_dir: RunDir) -> RunningServer:
    """Raises `NoServerError`."""
    if not has_launcher(run_dir):
        raise NoServerError(f"no server runs in {run_dir.path}")
    if not run_dir.address_file.exists():
        raise NoServerError(f"{run_dir.path} belongs to an engine that joined a server: name the server's")
    try:
        return RunningServer(run_dir, run_dir.read_config())
    except BootError as error:
        raise NoServerError(str(error)) from None


def _run_dirs() -> set[Path]:
    """Returns the run directories that this user's processes name on their command lines."""
    found: set[Path] = set()
    for process in psutil.process_iter(["uids", "cmdline"]):
        uids = process.info["uids"]
        words: list[str] = process.info["cmdline"] or []
        if words and not any(words[1:]):  # a title, which forked processes have
            words = words[0].split()
        if uids is not None and uids.real == os.getuid() and RUN_DIR_FLAG in words[:-1]:
            path = Path(words[words.index(RUN_DIR_FLAG) + 1])
            if path.is_absolute():
                found.add(path)
    return found
