"""What a process and all its descendants take of the machine, read from /proc (Linux)."""

import os
import time
from pathlib import Path

import msgspec
import psutil

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessMemory(msgspec.Struct, frozen=True):
    """One process. `pss_mib` shares each page among the processes that map it, so only these add up."""

    pid: int
    command: str
    rss_mib: float
    pss_mib: float
    num_threads: int


class TreeActivity(msgspec.Struct, frozen=True):
    """CPU time and wake-ups (voluntary context switches of all threads) of a whole tree over `seconds`."""

    seconds: float
    percent_of_a_core: float
    wakeups_per_s: float
    percent_by_process: dict[str, float]
    wakeups_per_s_by_process: dict[str, float]


def tree_pids(root: int) -> list[int]:
    """Returns `root` and its descendants that live."""
    return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]


def is_running(pid: int) -> bool:
    """Whether the process lives; one that has ended and only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(pid: int) -> str:
    """Returns what a process runs, short enough for a table: a module, a script, or its name."""
    words = psutil.Process(pid).cmdline()
    for index, word in enumerate(words[1:], 1):
        if word == "-m" and index + 1 < len(words):
            return words[index + 1]
        if word == "-c":
            return "python -c"
        if not word.startswith("-"):
            return Path(word).name
    return psutil.Process(pid).name()


def memory(root: int) -> list[ProcessMemory]:
    """Returns the memory of each process of the tree, the root first."""
    return [_memory_of(pid) for pid in tree_pids(root)]


def watch(root: int, seconds: float) -> TreeActivity:
    """Returns what the tree did in the next `seconds`. Processes that begin or end meanwhile are not counted."""
    pids = tree_pids(root)
    names = unique_names({pid: command_of(pid) for pid in pids})
    begin_s, before = time.monotonic(), {pid: _usage(pid) for pid in pids}
    time.sleep(seconds)
    passed_s, after = time.monotonic() - begin_s, {pid: _usage(pid) for pid in pids if is_running(pid)}
    cpu = {names[pid]: 100 * (after[pid][0] - before[pid][0]) / passed_s for pid in after}
    wakeups = {names[pid]: (after[pid][1] - before[pid][1]) / passed_s for pid in after}
    return TreeActivity(
        seconds=round(passed_s, 2),
        percent_of_a_core=round(sum(cpu.values()), 3),
        wakeups_per_s=round(sum(wakeups.values()), 2),
        percent_by_process={name: round(value, 3) for name, value in cpu.items()},
        wakeups_per_s_by_process={name: round(value, 2) for name, value in wakeups.items()},
    )


def unique_names(commands: dict[int, str]) -> dict[int, str]:
    """Returns a name for each pid: its command, with the pid where several run the same."""
    taken = list(commands.values())
    return {pid: name if taken.count(name) == 1 else f"{name} ({pid})" for pid, name in commands.items()}


def _memory_of(pid: int) -> ProcessMemory:
    fields = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return ProcessMemory(
        pid=pid,
        command=command_of(pid),
        rss_mib=round(fields["Rss"] / 1024, 1),
        pss_mib=round(fields["Pss"] / 1024, 1),
        num_threads=sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()),
    )


def _usage(pid: int) -> tuple[float, int]:
    """CPU seconds of the process and voluntary context switches of its threads (those that have ended excepted)."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    user, system = stat.rpartition(")")[2].split()[11:13]
    switches = sum(_fields(task / "status")["voluntary_ctxt_switches"] for task in Path(f"/proc/{pid}/task").iterdir())
    return (int(user) + int(system)) / _TICKS_PER_S, switches


def _fields(file: Path) -> dict[str, int]:
    """The numeric fields of a `Name:  123 kB` file."""
    found: dict[str, int] = {}
    for line in file.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found
