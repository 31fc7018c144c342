"""Replacing a healthy process on command, so that no client notices more than a pause.

The new one starts while the old one serves, and stands by. A process of the ring then gives way: it stops, its
successor gets the name, and the frontend continues the open requests. A frontend moves aside: its successor accepts
connections, and the old one finishes those that it has.
"""

import time
from collections.abc import Callable, Generator

from messages.control.admin import Done, Progress, RestartProcess
from messages.control.processes import SUCCESSOR, WAITING, Drain, Leave, kind_of, place_of
from messages.engine_names import RANK, SCHEDULER
from supervisor.admin.inquiries import find_process
from supervisor.admin.tasks import CommandFailedError, Steps, Task, until
from supervisor.child import Child
from supervisor.endings import describe_exit
from supervisor.lifecycle import Lifecycle
from supervisor.process_group import ProcessGroup

STOP_TIMEOUT_S = 3.0
FRONT_STOP_TIMEOUT_S = 5.0
DRAIN_MARGIN_S = 1.0
MOVE_TIMEOUT_S = 30.0
"""Time for requests to continue at another scheduler; it takes far less."""

JOIN_TIMEOUT_S = 60.0
"""The time for an engine on another machine to join its new proxy; a joiner tries for ten seconds."""

FOREVER = float("inf")
"""The watch ends a start that makes no progress, so no other limit is needed."""


def restart_processes(lifecycle: Lifecycle, command: RestartProcess, drain_timeout_s: float) -> Task:
    """Replaces a process, or all of its kind one after the other; returns `Done` when the old ones are gone.

    The next one's turn comes when the one before it serves. `drain_timeout_s` is for a `command` that gives no time.
    """
    group = lifecycle.group
    child = find_process(group, command.process)
    if not command.is_for_all:
        return (yield from _replace(lifecycle, child.name, command.timeout_s, drain_timeout_s))
    children = [other for other in group if kind_of(other.name) == kind_of(child.name) and not other.is_passing]
    names = [other.name for other in children]
    for other in children:
        _check_replaceable(group, other)
    for num_done, name in enumerate(names):
        try:
            done = yield from _replace(lifecycle, name, command.timeout_s, drain_timeout_s)
        except CommandFailedError as error:
            left = f"; not replaced: {', '.join(names[num_done + 1 :])}" if num_done + 1 < len(names) else ""
            text = f"{error}; replaced: {', '.join(names[:num_done]) or 'none'}{left}"
            raise CommandFailedError(error.failed.reason, text) from None
        yield Progress(done.text)
    return Done(f"{kind_of(child.name)}: all {len(names)} replaced")


def _replace(
    lifecycle: Lifecycle, name: str, timeout_s: float | None, drain_timeout_s: float
) -> Generator[float | Progress, None, Done]:
    """Replaces one process; without `timeout_s` a scheduler's requests continue elsewhere or in the new one at once."""
    group = lifecycle.group
    child = find_process(group, name)
    _check_replaceable(group, child)
    spare = group.find(child.name + SUCCESSOR)
    if spare is not None:  # it may be of older code than what the new one shall run
        yield from stop_process(group, spare)
        _check_replaceable(group, child)
    began_s = time.monotonic()
    successor = lifecycle.start_successor(child)
    if not child.is_front:  # HTTP receives only its end
        yield Progress(f"{child.name}: a new one starts while the old one serves")
    yield from until(lambda: not successor.pid or group.state(successor) == "standby", FOREVER)
    _check_stands_by(lifecycle, successor, child)
    if child.is_front:
        limit_s = drain_timeout_s if timeout_s is None else timeout_s
        num_unfinished = yield from _let_move_aside(group, successor, child, limit_s)
        end = f"; {num_unfinished} of its requests did not finish in time" if num_unfinished else ""
        return Done(f"{successor.name}: the old one has left after {time.monotonic() - began_s:.1f} s{end}")
    gap_began_s = time.monotonic()
    yield from _let_give_way(lifecycle, successor, child, timeout_s)
    now_s = time.monotonic()
    gap = f"{now_s - began_s:.1f} s, the last {now_s - gap_began_s:.2f} s of them without taking new work"
    return Done(f"{successor.name}: replaced in {gap}")


def stop_process(group: ProcessGroup, child: Child, timeout_s: float = STOP_TIMEOUT_S) -> Steps:
    """Ends a process; it is killed if it does not exit in time."""
    group.ask_to_stop(child)
    has_ended = yield from until(lambda: not child.pid, time.monotonic() + timeout_s)
    if not has_ended:
        child.kill("did not stop and was killed")
        yield from until(lambda: not child.pid, FOREVER)


def check_no_handover(group: ProcessGroup, name: str) -> None:
    """Raises `CommandFailedError` while the server starts or drains, and while process `name` is being replaced."""
    if group.is_draining or not group.has_started:
        raise CommandFailedError("busy", f"the server is {'draining' if group.is_draining else 'starting'}")
    if any(other.is_passing and not other.is_spare and place_of(other.name) == name for other in group):
        raise CommandFailedError("busy", f"the {name} is being replaced already")


def _check_replaceable(group: ProcessGroup, child: Child) -> None:
    name = child.name
    if kind_of(name) == RANK:
        leader = group.leader_of(child).name
        raise CommandFailedError("impossible", f"the {name} is replaced with its scheduler: restart {leader}")
    if child.is_external:
        raise CommandFailedError("impossible", f"the {name} was started by hand; stop it and start it again there")
    if child.is_passing:
        raise CommandFailedError("impossible", f"{name} is there only for the moment")
    check_no_handover(group, place_of(name))
    if child.is_on_trial or group.status(child).is_leaving:
        raise CommandFailedError("busy", f"the {name} is being scaled")
    if not group.is_up(child):
        raise CommandFailedError("busy", f"the {name} is {group.state(child)}, so it is being replaced already")


def _check_stands_by(lifecycle: Lifecycle, successor: Child, child: Child) -> None:
    """Raises `CommandFailedError` if the successor has ended; then the command has had no effect."""
    if successor.pid:
        return
    end = "the old one serves on"
    if not child.pid:
        lifecycle.plan_restart(child, was_starting=False)
        end = "the old one has ended too, and is started again"
    elif lifecycle.group.status(child).is_awaited:
        lifecycle.group.give_no_more_work(child, is_leaving=False)
        child.kill("had given its work away to a successor that ended")
        end = "the old one is started again"
    raise CommandFailedError(
        "failed", f"the new {child.command.name} {describe_exit(successor, was_starting=True)}; {end}"
    )


def _let_give_way(lifecycle: Lifecycle, successor: Child, child: Child, timeout_s: float | None) -> Steps:
    group = lifecycle.group
    group.await_successor(child)
    if kind_of(child.name) == SCHEDULER:
        moves = group.can_move_requests(child)
        if moves:
            group.give_no_more_work(child)
        if timeout_s is None:
            timeout_s = MOVE_TIMEOUT_S if moves else 0.0
        where = (
            "elsewhere" if moves else f"in the new one{f' if they do not end within {timeout_s:g} s' * bool(timeout_s)}"
        )
        yield Progress(f"{child.name}: running requests continue {where}")
        yield from drain_rows(group, child, timeout_s, lambda: not successor.pid)
        _check_stands_by(lifecycle, successor, child)
    yield from stop_process(group, child)
    yield from until(lambda: not any(rank.pid for rank in group.ranks_of(child)), FOREVER)
    _check_stands_by(lifecycle, successor, child)
    lifecycle.replace_ranks(child)
    yield from _take_place(group, successor, child)


def drain_rows(
    group: ProcessGroup, child: Child, timeout_s: float, is_over: Callable[[], bool] = lambda: False
) -> Steps:
    """Lets the rows of a scheduler finish. If it gets no more work and there are others, they continue there.

    Requests that wait for a row, and rows that do not finish in time, continue in the next scheduler.
    """
    group.control.drain(child.name, Drain(timeout_s))
    yield from until(
        lambda: group.control.has_drained(child.name) or not child.pid or is_over(), time.monotonic() + timeout_s
    )


def _take_place(group: ProcessGroup, successor: Child, child: Child) -> Steps:
    incarnation = successor.incarnation
    group.give_place(successor, child)

    def is_over() -> bool:
        return successor.incarnation != incarnation or not successor.pid or group.is_up(successor)

    yield from until(is_over, time.monotonic() + JOIN_TIMEOUT_S)
    for one in (successor, *group.ranks_of(successor)) if successor.name in group else ():
        phase = group.status(one).phase
        if one.command.is_remote and phase.startswith(WAITING):
            group.expect_no_longer(successor)
            raise CommandFailedError("failed", f"no engine has joined in place of the old {one.name}: it is {phase}")
    yield from until(is_over, FOREVER)
    if successor.incarnation != incarnation or not successor.pid:
        raise CommandFailedError(
            "failed", f"the new {successor.name} ended as it took over: {successor.boot_error or successor.ending}"
        )


def _let_move_aside(
    group: ProcessGroup, successor: Child, child: Child, timeout_s: float
) -> Generator[float | Progress, None, int]:
    """Returns how many requests of the old frontend did not finish in time."""
    failure = None
    try:
        yield from _take_place(group, successor, child)
    except CommandFailedError as error:  # the new one is being started again, and the old one has lost its name
        failure = error
    group.control.drain(child.name, Leave(timeout_s))
    yield Progress(f"{successor.name}: the new one accepts connections; those of the old one may take {timeout_s:g} s")
    deadline_s = time.monotonic() + timeout_s + DRAIN_MARGIN_S
    yield from until(lambda: group.control.has_drained(child.name) or not child.pid, deadline_s)
    yield from stop_process(group, child, FRONT_STOP_TIMEOUT_S)
    if failure is not None:
        raise failure
    return group.control.num_unfinished(child.name)
