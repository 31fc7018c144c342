"""The process `models`: it has imported what a model's server needs, and forks a server for each model to load.

It computes nothing and uses no GPU, so that its forks can. Servers that run outlive it; the next host finds them.
"""

import gc
import logging
import re
import select
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

import msgspec
import setproctitle

from extras.models.config import ModelEntry, ModelsConfig
from extras.models.descriptions import Descriptions
from extras.models.messages import DescribeModel, Models, StartModel, StopModel, ToHost, WatchModels
from extras.models.model_server import ModelServer
from messages.channels import AskServer
from messages.control.processes import SUCCESSOR
from runtime.extras import load_parts
from runtime.process import BEAT_INTERVAL_S, ProcessLink, run_process
from scheduler_proc.computing.torch_import import import_torch
from supervisor.console import Console
from supervisor.manifest import library_versions

MODULES = (
    *("detokenizer_proc.process", "frontend.process", "uvloop", "tokenizer_proc.process"),
    *("tokenizer_proc.chat", "scheduler_proc.process", "scheduler_proc.computing.load_runner"),
    *("scheduler_proc.computing.loading.open_weights", "scheduler_proc.computing.loading.weight_cache"),
)
"""The modules of a model's server: forked processes have them at once."""

STOP_S, STOP_LOOK_S = 2.5, 0.1
"""How long the models' servers may take to end when the whole server stops, and between two looks."""

MAX_NAME = 24

log = logging.getLogger("sluice.models")


class Host:
    """All models; the router receives their states."""

    def __init__(self, link: ProcessLink):
        self._link = link
        self._section = ModelsConfig.of(link.config)
        self._console = Console()
        self._console.is_json = link.config.run.log_format == "json"
        names = _directory_names(self._section.entries)
        self._servers = {
            entry.name: ModelServer(entry, link.run_dir, names[entry.name]) for entry in self._section.entries
        }
        self._channel: AskServer[ToHost] = AskServer(link.run_dir.socket("models"), ToHost)
        self._watchers: set[bytes] = set()
        self._watched: set[int] = set()
        link.waiter.add_channel(self._channel)
        for server in self._servers.values():
            server.find_running()
        self._sent = Models(())
        self._descriptions = Descriptions(self._section, self._servers, self._warn)

    def turn(self) -> None:
        """Handles everything that has happened, and waits for more."""
        for identity, message in self._channel.receive():
            self._handle(identity, message)
        self._publish()  # a start is seen before its end
        for server in self._servers.values():
            server.look(self._console)
        self._descriptions.advance(may_start=not self._link.is_stopping)
        self._publish()
        self._watch()
        self._console.flush()
        self._link.beat(dict)
        owners = (self._descriptions, *self._servers.values())
        self._link.wait(min([BEAT_INTERVAL_S, *(owner.due_in_s() for owner in owners)]))
        self._link.receive_control()

    def close(self) -> None:
        """Ends the models' servers if the whole server stops, and leaves them to the next host otherwise."""
        has_successor = self._link.name + SUCCESSOR in self._link.run_dir.pids()
        if not has_successor and not self._link.was_signalled:
            for server in self._servers.values():
                server.stop(STOP_S)
            while running := [server.descriptors[0] for server in self._servers.values() if server.descriptors]:
                select.select(running, [], [], STOP_LOOK_S)
                for server in self._servers.values():
                    server.look(self._console)
        self._channel.close()
        self._console.close()

    def _handle(self, identity: bytes, message: ToHost) -> None:
        if isinstance(message, WatchModels):
            self._watchers.add(identity)
            self._channel.send_to(identity, self._sent)
            return
        server = self._servers.get(message.name)
        if server is None:
            log.error("no model is named %s", message.name)
            return
        match message:
            case DescribeModel(name):
                if server.report.description is None or server.report.description.error:
                    server.record_description(None)
                    self._descriptions.want(name, may_fetch=True)
            case StartModel(name) if server.is_outdated:
                server.record_description(None)
                self._descriptions.want(name, may_fetch=False)
            case StartModel():
                server.start()
            case StopModel():
                server.stop()

    def _warn(self, name: str, text: str) -> None:
        self._console.show_of(name, text, "warning")

    def _publish(self) -> None:
        models = Models(tuple(server.report for server in self._servers.values()))
        if models != self._sent:
            self._sent = models
            for identity in self._watchers:
                self._channel.send_to(identity, models)

    def _watch(self) -> None:
        """Makes the link's `wait` return when a process ends or writes."""
        requested = {one for server in self._servers.values() for one in server.descriptors}
        requested |= self._descriptions.descriptors
        for descriptor in self._watched - requested:
            self._link.waiter.remove_descriptor(descriptor)
        for descriptor in requested - self._watched:
            self._link.waiter.add_descriptor(descriptor)
        self._watched = requested


def _directory_names(entries: Iterable[ModelEntry]) -> dict[str, str]:
    """Returns the names of the models' directories: short, as a socket's path must be, and different."""
    names: dict[str, str] = {}
    for number, entry in enumerate(entries):
        name = re.sub(r"[^\w.-]", "_", entry.name, flags=re.ASCII)[:MAX_NAME]
        names[entry.name] = name if name not in names.values() and name.strip(".") else f"{name}-{number}"
    return names


def prepare() -> None:
    """Imports and computes once what every model's server would."""
    import_torch()
    for module in MODULES:
        import_module(module)
    library_versions()
    kinds = [msgspec.Struct]
    for kind in kinds:
        kinds += kind.__subclasses__()
        with suppress(TypeError, NameError):  # of a part of it, no message is made
            msgspec.json.Decoder(kind)


def serve(link: ProcessLink) -> None:
    """Starts and ends models' servers until the process is stopped."""
    link.phase("importing torch")
    load_parts(link.config, "frontend")
    prepare()
    if not link.stand_by():
        return
    host = Host(link)
    gc.collect()
    gc.freeze()
    link.ready()
    while not link.is_stopping:
        host.turn()
    host.close()


def main() -> int:
    setproctitle.setproctitle(shlex.join(["python", "-m", "extras.models.host", *sys.argv[1:]]))
    return run_process("models", serve)


if __name__ == "__main__":
    raise SystemExit(main())
