"""Commands that change nothing in the launcher: the list of processes, their logs, and instructions to them."""

import fnmatch
import os
import time

import msgspec

from messages.control import admin
from messages.control.processes import ProcessStatus, age_s
from runtime.run_dir import RunDir, other_processes
from supervisor.admin.tasks import CommandFailedError, Task, until
from supervisor.admin.usage import MIN_SPAN_S, UsageMeter, memory_bytes
from supervisor.child import Child
from supervisor.process_group import ProcessGroup

LAUNCHER = "launcher"
MAX_LOG_WAIT_S = 60.0


def find_process(group: ProcessGroup, name: str) -> Child:
    """Returns the process that a command is about: `scheduler-1` is also a name of the `scheduler`.

    Raises `CommandFailedError` if there is none of that name.
    """
    child = group.find(name) or group.find(name.removesuffix("-1"))
    if child is None:
        raise CommandFailedError("unknown", f"there is no process {name!r}; they are {', '.join(group.names())}")
    return child


def list_processes(group: ProcessGroup, run_dir: RunDir) -> Task:
    """Measures for a moment, then returns the `ProcessList`: the launcher, then its processes.

    The memory includes that of servers within the run directory, which outlive the process that has started them.
    """
    began_s = time.monotonic()
    pids = [os.getpid(), *(child.pid for child in group if child.pid)]
    for directory in {file.parent for file in run_dir.path.glob("*/*/*.pid")}:
        pids += other_processes(RunDir(directory))
    meter = UsageMeter(pids)
    yield from until(lambda: False, began_s + MIN_SPAN_S)
    own = ProcessStatus(LAUNCHER, "ready", os.getpid(), incarnation=1, beat_ns=time.monotonic_ns())
    infos = tuple(_info(status, meter) for status in (own, *group.board.statuses()))
    return admin.ProcessList(infos, group.board.scaling, memory_bytes(pids))


def read_log(group: ProcessGroup, command: admin.ReadLog) -> Task:
    """Returns `LogLines`; with `after` they may have to be waited for."""
    child = find_process(group, command.process)
    if child.is_external:
        raise CommandFailedError("impossible", f"the {child.name} was started by hand, and writes where that was done")
    log = child.log
    if command.after < 0:
        return admin.LogLines(tuple(log.last(command.num_lines)), log.next_number)
    deadline_s = time.monotonic() + min(command.wait_s, MAX_LOG_WAIT_S)
    yield from until(lambda: log.next_number > command.after, deadline_s)
    return admin.LogLines(tuple(log.since(command.after)), log.next_number)


def instruct(group: ProcessGroup, command: admin.InstructProcesses) -> Task:
    """Returns the result of the instruction in each process, as `ProcessResults`."""
    serving = [status.name for status in group.board.statuses() if status.is_up]
    requested = [
        fnmatch.filter(group.names(), pattern) or [find_process(group, pattern).name] for pattern in command.processes
    ]
    names = list(dict.fromkeys(name for some in requested for name in some)) or serving
    results: dict[str, admin.ProcessResult] = {
        name: admin.Failed("busy", f"the {name} does not serve just now") for name in names if name not in serving
    }
    open_ids = {name: group.control.instruct(name, command.command) for name in names if name in serving}
    incarnations = {name: find_process(group, name).incarnation for name in open_ids}

    def collect() -> bool:
        for name in list(open_ids):
            result = group.control.find_result(open_ids[name])
            child = group.find(name)
            if result is None and (child is None or not child.pid or child.incarnation != incarnations[name]):
                result = admin.Failed("failed", f"the {name} ended meanwhile")
            if result is not None:
                results[name] = result
                group.control.forget_instruction(open_ids.pop(name))
        return not open_ids

    try:
        yield from until(collect, time.monotonic() + command.timeout_s)
    finally:
        for instruction_id in open_ids.values():
            group.control.forget_instruction(instruction_id)
    results |= {name: admin.Failed("timeout", f"no answer within {command.timeout_s:g} s") for name in open_ids}
    return admin.ProcessResults(results)


def _info(status: ProcessStatus, meter: UsageMeter) -> admin.ProcessInfo:
    now_ns = time.monotonic_ns()
    measured = {
        "beat_age_s": age_s(status.beat_ns, now_ns),
        "busy_s": age_s(status.busy_since_ns, now_ns),
        "cpu_percent": meter.cpu_percent(status.pid) if status.pid else None,
        "rss_bytes": meter.rss_bytes(status.pid) if status.pid else None,
        "phase": status.phase if status.state == "starting" else "",
    }
    return msgspec.convert(msgspec.structs.asdict(status) | measured, admin.ProcessInfo)
