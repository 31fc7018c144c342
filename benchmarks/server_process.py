"""A server started by a benchmark: free port, own run directory, always stopped; and its use of memory and CPU."""

import collections
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.load.connection import Target, parse_url
from benchmarks.load.server_facts import ServerUnavailableError
from runtime.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = [sys.executable, str(ROOT / "launch.py")]
OWN_FLAGS = ("--port", "0", "--max-snapshots", "0")
POLL_INTERVAL_S = 0.02

COMPILED_NOT_KEPT = "PYTHONDONTWRITEBYTECODE"
"""With it each process compiles all that it imports of ours at every start, which no installation does."""

NUM_LINES_SHOWN = 40

OpenProcess = Callable[..., Any]
"""Starts a launcher as `subprocess.Popen` does, and returns an object with the parts of it that are used here."""


class ServerProcess:
    """A running launcher, of the code in `root` if given. `log` holds its last lines, with the seconds since the start.

    It takes no snapshots unless the arguments ask for them. In a session of its own, Linux gives it the CPU time of one
    program, whatever else runs; its threads of low priority then wait only for its own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        root: Path | None = None,
        *,
        has_own_session: bool = False,
        open_process: OpenProcess = subprocess.Popen,
    ):
        self.run_dir = RunDir(Path(tempfile.mkdtemp(prefix="sluice-bench-", dir="/tmp")))
        self.log: collections.deque[tuple[float, str]] = collections.deque(maxlen=20_000)
        self.begin_s = time.monotonic()
        launch = [sys.executable, str(root / "launch.py")] if root else LAUNCH
        self._process: subprocess.Popen[str] = open_process(
            [*launch, *OWN_FLAGS, "--run-dir", str(self.run_dir.path), *arguments],
            cwd=root or ROOT,
            env={name: value for name, value in os.environ.items() if name != COMPILED_NOT_KEPT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=has_own_session,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, deadline_s: float, is_ready: Callable[[Target], bool] | None = None) -> Target:
        """Returns where the server listens once `is_ready` holds there: by default, once `/health` answers 200.

        Raises `ServerUnavailableError` with the end of its log where it exits or `deadline_s` seconds pass before that.
        """
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                raise ServerUnavailableError(f"the server exited with {self._process.returncode}:\n{self.log_text()}")
            target = self._address()
            if target is not None and (is_ready or _is_ready)(target):
                return target
            time.sleep(POLL_INTERVAL_S)
        raise ServerUnavailableError(f"the server was not ready after {deadline_s:g} s:\n{self.log_text()}")

    def wait_until_listening(self, deadline_s: float) -> None:
        """Returns once the launcher listens for its processes. Raises `ServerUnavailableError`."""
        end_s = time.monotonic() + deadline_s
        while not self.run_dir.socket("launcher").exists():
            if time.monotonic() > end_s:
                raise ServerUnavailableError(f"the launcher did not start:\n{self.log_text()}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self, deadline_s: float = 40.0) -> int:
        """Ends the server by SIGTERM, after the deadline by SIGKILL; returns the exit code. Safe to call again."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=5)
        shutil.rmtree(self.run_dir.path, ignore_errors=True)
        return self._process.returncode

    def log_text(self) -> str:
        """The last lines of the log."""
        return "\n".join(line for _, line in list(self.log)[-NUM_LINES_SHOWN:])

    def _address(self) -> Target | None:
        try:
            text = self.run_dir.address_file.read_text(encoding="ascii").strip()
        except OSError:
            return None
        return Target(*parse_url(text)) if text else None

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self.log.append((round(time.monotonic() - self.begin_s, 3), line.rstrip()))


@contextmanager
def started_server(
    arguments: Sequence[str], deadline_s: float, open_process: OpenProcess = subprocess.Popen
) -> Iterator[tuple[ServerProcess, Target]]:
    """A ready server, stopped at the end whatever happens."""
    server = ServerProcess(arguments, open_process=open_process)
    try:
        yield server, server.wait_until_ready(deadline_s)
    finally:
        server.stop()


@contextmanager
def server_with_scheduler(
    module: str, arguments: Sequence[str], deadline_s: float, scheduler_arguments: Sequence[str] = ()
) -> Iterator[tuple[ServerProcess, Target]]:
    """A ready server whose scheduler is `module`, started as a separate process."""
    server = ServerProcess(["--external", "scheduler", *arguments])
    scheduler = None
    try:
        server.wait_until_listening(deadline_s)
        command = [sys.executable, "-m", module, *scheduler_arguments, "--run-dir", str(server.run_dir.path)]
        scheduler = subprocess.Popen(command, cwd=ROOT)
        yield server, server.wait_until_ready(deadline_s)
    finally:
        server.stop()
        if scheduler is not None:
            scheduler.terminate()
            scheduler.wait(10)


def _is_ready(target: Target) -> bool:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


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
