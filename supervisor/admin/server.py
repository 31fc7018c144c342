"""Receives commands from the operator's socket and the frontends, and runs them without blocking the loop."""

import time
from dataclasses import dataclass, field

from messages.channels import AskServer
from messages.control import admin
from runtime.run_dir import RunDir
from supervisor.admin.drain import drain_server
from supervisor.admin.handover import restart_processes
from supervisor.admin.inquiries import instruct, list_processes, read_log
from supervisor.admin.scaling import scale_process
from supervisor.admin.snapshots import Snapshots
from supervisor.admin.tasks import OpenCommand, Reply, Task
from supervisor.lifecycle import Lifecycle
from supervisor.shutdown import Shutdown

MAX_OPEN_COMMANDS = 64
"""Each is a few objects; the bound is against a caller gone wild."""


@dataclass(eq=False)
class AdminServer:
    """All commands that are being carried out. `drain_timeout_s` is the time limit of a command that gives none."""

    _run_dir: RunDir
    _lifecycle: Lifecycle
    _shutdown: Shutdown
    _snapshots: Snapshots
    _drain_timeout_s: float
    _open: list[OpenCommand] = field(default_factory=list[OpenCommand])

    def __post_init__(self):
        self._group = self._lifecycle.group
        self.channel: AskServer[admin.Ask] = AskServer(self._run_dir.socket("operator"), admin.Ask)

    def follow(self) -> None:
        """Takes new commands and continues the open ones; call it at the end of each turn."""
        for asker, ask in self.channel.receive():
            self.begin(ask, lambda answer, asker=asker: self.channel.send_to(asker, answer))
        for identity, ask in self._group.control.pop_asks():
            self.begin(ask, lambda answer, identity=identity: self._group.control.send_to(identity, answer))
        self._open = [command for command in self._open if command.resume()]

    def due_in_s(self) -> float:
        """Returns when the next open command must be resumed."""
        return max(0.0, min((command.due_s for command in self._open), default=float("inf")) - time.monotonic())

    def fail_open(self) -> None:
        """Fails all open commands: the server ends."""
        for command in self._open:
            command.close()
            command.answer(admin.Failed("failed", "the server is stopping"))
        self._open.clear()

    def begin(self, ask: admin.Ask, reply: Reply) -> None:
        """Carries out a command over the following turns; `reply` receives its result."""
        if self._group.is_stopping or len(self._open) >= MAX_OPEN_COMMANDS:
            why = "the server is stopping" if self._group.is_stopping else "too many commands are open"
            reply(admin.Answer(ask.ask_id, admin.Failed("busy", why)))
            return
        self._open.append(OpenCommand(ask.ask_id, self._make_task(ask.command), reply))

    def _make_task(self, command: admin.AdminCommand) -> Task:
        match command:
            case admin.ListProcesses():
                return list_processes(self._group, self._run_dir)
            case admin.ReadLog():
                return read_log(self._group, command)
            case admin.InstructProcesses():
                return instruct(self._group, command)
            case admin.DrainServer(timeout_s):
                return drain_server(
                    self._group, self._shutdown, self._drain_timeout_s if timeout_s is None else timeout_s
                )
            case admin.RestartProcess():
                return restart_processes(self._lifecycle, command, self._drain_timeout_s)
            case admin.ScaleProcess():
                return scale_process(self._lifecycle, command, self._drain_timeout_s)
            case admin.TakeSnapshot():
                return self._snapshots.take_on_command(command)
