"""Receives commands from the operator's socket and the frontends, and runs them without blocking the loop.

Drains the server on command: the frontends accept no new requests, and the run ends after the last one.

More or fewer processes of a kind, on command, while requests continue.
"""

import time

from messages.channels import AskServer
from messages.control import admin
from messages.control.admin import Done, Progress, ScaleProcess
from messages.control.processes import ENCODER, WAITING, kind_of, worker_name, worker_number
from messages.engine_names import SCHEDULER
from runtime.run_dir import RunDir
from supervisor.admin.handover import JOIN_TIMEOUT_S, check_no_handover, drain_rows, restart_processes, stop_process
from supervisor.admin.inquiries import find_process, instruct, list_processes, read_log
from supervisor.admin.snapshots import Snapshots
from supervisor.admin.tasks import CommandFailedError, OpenCommand, Reply, Steps, Task, until
from supervisor.child import Child, command_of_worker
from supervisor.lifecycle import Lifecycle
from supervisor.process_group import ProcessGroup
from supervisor.shutdown import DRAIN_MARGIN_S, Shutdown

MAX_WORKERS = {"tokenizer": 64, ENCODER: 16, SCHEDULER: 32}
LAST_WORK_S = 0.3
"""Time for the frontend to learn that a worker leaves, and the worker to finish what was on its way to it.

Should that be too short once, the frontend repeats what it knows to be unfinished.
"""


def scale_process(lifecycle: Lifecycle, command: ScaleProcess, drain_timeout_s: float) -> Task:
    """Starts workers, or ends those with the highest numbers; the requests of a scheduler continue at the others."""
    group = lifecycle.group
    workers = _check_scalable(group, command)
    firsts = (workers[0], *group.ranks_of(workers[0]))
    added = [
        lifecycle.add(command_of_worker(first.command, number))
        for number in range(1, command.num + 1)
        if worker_name(command.process, number) not in group
        for first in firsts
    ]
    if added:
        yield Progress(f"{', '.join(child.name for child in added)} start")
        yield from _until_started(group, added)
        failed = [child for child in added if child.is_on_trial]
        if failed:
            why = "; ".join(f"{child.name}: {child.boot_error or child.ending}" for child in failed)
            raise CommandFailedError("failed", f"not all could be started: {why}")
    for child in reversed(workers[command.num :]):
        yield Progress(f"{child.name} leaves")
        yield from _let_leave(group, child, drain_timeout_s)
    return Done(f"{command.process}: {len(workers)} -> {command.num}")


def _until_started(group: ProcessGroup, added: list[Child]) -> Steps:
    """Waits until each serves or has ended; an engine that has no machine to run on for a minute is given up."""

    def starting() -> list[Child]:
        return [child for child in added if child.pid and child.is_on_trial]

    while not (yield from until(lambda: not starting(), time.monotonic() + JOIN_TIMEOUT_S)):
        for child in starting():
            phase = group.status(child).phase
            if phase.startswith(WAITING):
                child.boot_error = f"no engine has joined within {JOIN_TIMEOUT_S:g} s: it was {phase}"
                yield from stop_process(group, child)


def _check_scalable(group: ProcessGroup, command: ScaleProcess) -> list[Child]:
    """Returns the present workers by number."""
    kind = command.process
    if kind not in MAX_WORKERS:
        find_process(group, kind)
        raise CommandFailedError("impossible", f"only {', '.join(MAX_WORKERS)} can be scaled, not the {kind}")
    if not 1 <= command.num <= MAX_WORKERS[kind]:
        raise CommandFailedError(
            "impossible", f"there can be 1 to {MAX_WORKERS[kind]} of the {kind}, not {command.num}"
        )
    check_no_handover(group, kind)
    workers = [child for child in group if kind_of(child.name) == kind and not child.is_spare]
    workers = workers or [find_process(group, kind)]
    if any(child.is_on_trial or child.is_passing or group.status(child).is_leaving for child in workers):
        raise CommandFailedError("busy", f"the {kind} is being scaled or replaced already")
    if any(child.is_external for child in workers):
        raise CommandFailedError("impossible", f"the {kind} is started by hand; start more of them there")
    if any(not child.command.is_scalable for child in workers):
        raise CommandFailedError("impossible", f"the flags say how many of the {kind} there are")
    return sorted(workers, key=lambda child: worker_number(child.name))


def _let_leave(group: ProcessGroup, child: Child, drain_timeout_s: float) -> Steps:
    group.give_no_more_work(child)
    if kind_of(child.name) == SCHEDULER and child.pid:
        yield from drain_rows(group, child, drain_timeout_s)
    yield from until(lambda: not child.pid, time.monotonic() + LAST_WORK_S)
    if child.pid:
        yield from stop_process(group, child)
    elif child.name in group:  # it was dead already, and waited for its restart
        group.remove(child)


def drain_server(group: ProcessGroup, shutdown: Shutdown, timeout_s: float) -> Task:
    """Drains without blocking the loop; the shutdown is wanted when that is over, and then the run ends."""
    if group.is_draining or not (group.has_started and group.has_listening_frontend()):
        raise CommandFailedError("busy", "the server drains already" if group.is_draining else "the server is starting")
    shutdown.begin_drain(timeout_s)
    yield from until(group.has_drained, time.monotonic() + timeout_s + DRAIN_MARGIN_S)
    num = group.num_unfinished()
    shutdown.is_requested = True
    return Done(f"drained: {num} requests did not finish in time" if num else "drained: every request has ended")


MAX_OPEN_COMMANDS = 64
"""Each is a few objects; the bound is against a caller gone wild."""


class AdminServer:
    """All commands that are being carried out. `drain_timeout_s` is the time limit of a command that gives none."""

    def __init__(
        self,
        run_dir: RunDir,
        lifecycle: Lifecycle,
        shutdown: Shutdown,
        snapshots: Snapshots,
        drain_timeout_s: float,
    ):
        self._lifecycle = lifecycle
        self._group = lifecycle.group
        self._shutdown = shutdown
        self._snapshots = snapshots
        self._drain_timeout_s = drain_timeout_s
        self.channel: AskServer[admin.Ask] = AskServer(run_dir.socket("operator"), admin.Ask)
        self._open: list[OpenCommand] = []

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

    def close(self) -> None:
        self.channel.close()

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
                return list_processes(self._group)
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
