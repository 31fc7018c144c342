"""More or fewer processes of a kind, on command, while requests continue."""

import time

from messages.control.admin import Done, Progress, ScaleProcess
from messages.control.processes import ENCODER, WAITING, kind_of, worker_name, worker_number
from messages.engine_names import SCHEDULER
from supervisor.admin.handover import JOIN_TIMEOUT_S, check_no_handover, drain_rows, stop_process
from supervisor.admin.inquiries import find_process
from supervisor.admin.tasks import CommandFailedError, Steps, Task, until
from supervisor.child import Child, command_of_worker
from supervisor.lifecycle import Lifecycle
from supervisor.process_group import ProcessGroup

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
