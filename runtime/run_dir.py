"""The run directory: the one private place where a run keeps its sockets, its pids and its configuration."""

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

import msgspec

from messages.config.server import Config
from messages.errors import BootError, UsageError
from runtime.own_directory import empty_directory, names_in, own_directory

MAX_IPC_PATH_BYTES = 107
LONGEST_SOCKET_NAME = "frontend.999999.sock"
LOCK_PATIENCE_S = 0.3
"""How long the lock is waited for: a launcher that dies, or a process that clears its run, holds it for a moment."""


class RunDir:
    """Names the files of one run directory. Making an object touches nothing."""

    def __init__(self, path: Path):
        self.path = path

    def socket(self, receiver: str) -> Path:
        """The ipc socket that process `receiver` binds (`launcher` for the control plane)."""
        return self.path / f"{receiver}.sock"

    def sockets(self) -> list[str]:
        """Returns which of them are bound, or were and have not been taken away: the receivers' names."""
        return [path.stem for path in self.path.glob("*.sock")]

    def pid_file(self, process: str) -> Path:
        return self.path / f"{process}.pid"

    def note_pid(self, process: str, pid: int) -> None:
        """Writes the pid file if the disk allows it. Without one, only `clear_run` cannot find the process."""
        with contextlib.suppress(OSError):
            self.pid_file(process).write_text(f"{pid}", encoding="ascii")

    @property
    def lifeline(self) -> Path:
        """A FIFO whose write end the launcher holds: end of file means that the launcher is gone."""
        return self.path / "lifeline"

    @property
    def address_file(self) -> Path:
        """Contains `http://host:port` (or https) of the run; an engine that joined a server has none."""
        return self.path / "address"

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def black_box(self) -> Path:
        """A directory of the processes' last frames (`runtime/black_box/`), if they are kept."""
        return self.path / "black-box"

    @property
    def profiles(self) -> Path:
        """The directory of profiles that are being merged, if there were any."""
        return self.path / "profiles"

    @property
    def head_keys(self) -> Path:
        """The keys with which the head meets engines on other machines, if it takes any."""
        return self.path / "head.key"

    @property
    def join_keys(self) -> Path:
        """The keys with which they join; their operators copy the file."""
        return self.path / "join.key"

    def kv_file(self, name: str) -> Path:
        """A link to the launcher's file in memory for the KV cache of scheduler `name`, if it has one."""
        return self.path / f"{name}.kv-cache"

    def ranks_file(self, name: str) -> Path:
        """Where the ranks of scheduler `name` find each other."""
        return self.path / f"{name}.ranks"

    @property
    def weights_file(self) -> Path:
        """A link to the launcher's file in memory for the weights that all schedulers share."""
        return self.path / "weights"

    @property
    def lock_file(self) -> Path:
        """Its name identifies a directory that a killed launcher left behind."""
        return self.path / "run.lock"

    def stacks_file(self, pid: int) -> Path:
        """Where process `pid` writes the stacks of its threads when it is asked to, from the moment that it may be."""
        return self.path / "stacks" / f"{pid}"

    def write_config(self, config: Config) -> None:
        self.config_file.write_bytes(msgspec.json.format(msgspec.json.encode(config)))

    def read_config(self) -> Config:
        """Raises `BootError` where there is no run in this directory."""
        try:
            return msgspec.json.decode(self.config_file.read_bytes(), type=Config)
        except FileNotFoundError:
            raise BootError(
                f"no server runs in {self.path}: start one with `python launch.py --run-dir {self.path}`"
            ) from None
        except msgspec.DecodeError as error:
            raise BootError(f"{self.config_file}: written by another version of this program: {error}") from None

    def pids(self) -> dict[str, int]:
        """The processes that have written their pid, by name."""
        found: dict[str, int] = {}
        for file in self.path.glob("*.pid"):
            with contextlib.suppress(FileNotFoundError):
                text = file.read_text(encoding="ascii", errors="replace")
                if text.isdigit():
                    found[file.stem] = int(text)
        return found

    def remove(self) -> None:
        """Removes the directory and all in it; no error where it is gone already.

        The lock file goes last: by it a launcher that comes meanwhile knows a directory that it may take over.
        """
        with contextlib.suppress(OSError):
            with own_directory(self.path) as directory:
                empty_directory(directory, kept=self.lock_file.name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.lock_file.name, dir_fd=directory)
            self.path.rmdir()


def default_path(name: int | str) -> Path:
    """Returns the run directory of the server on the port `name`, or of what else runs: short, apart for each user."""
    root = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = Path(root) if root and Path(root).is_dir() else Path("/tmp")
    return parent / f"sluice-{os.getuid()}-{name}"


def claim(path: Path) -> tuple[RunDir, int]:
    """Creates the run directory, or takes over one that its launcher left behind (and kills what still runs in it).

    Returns it, with an absolute path, and the descriptor of the lock that must stay open for the run. Raises
    `UsageError` where another launcher holds it, where the path is too long for a socket, or where it is not the
    user's own directory.
    """
    path = path.absolute()
    run_dir = RunDir(path)
    if len(os.fsencode(path / LONGEST_SOCKET_NAME)) > MAX_IPC_PATH_BYTES:
        raise UsageError(
            f"--run-dir: {path} is too long for a socket (at most {MAX_IPC_PATH_BYTES} bytes with its name)"
        )
    lock = _lock_directory(run_dir)
    kill_processes(run_dir)
    with own_directory(path) as directory:
        empty_directory(directory, kept=run_dir.lock_file.name)
    return run_dir, lock


def try_lock(run_dir: RunDir) -> int | None:
    """Locks an existing run directory; `None` if a launcher holds the lock.

    Raises `FileNotFoundError` if there is no such directory, `OSError` if it is not this user's own.
    """
    name = run_dir.lock_file.name
    with own_directory(run_dir.path) as directory:
        lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino:
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)
    return None


def kill_processes(run_dir: RunDir) -> list[int]:
    """Kills what runs in a run directory whose lock the caller holds, itself excepted; returns the pids."""
    pids = other_processes(run_dir)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def other_processes(run_dir: RunDir) -> list[int]:
    """Returns the pids of the processes that run in this run directory, the caller's excepted."""
    return [pid for pid in run_dir.pids().values() if pid != os.getpid() and _runs_in(pid, run_dir.path)]


def _runs_in(pid: int, path: Path) -> bool:
    """Tells whether process `pid` was started on this run directory or has a file in it (so that a reused pid is never
    killed)."""
    process, place = Path(f"/proc/{pid}"), path.resolve()
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
        files = (process / "fd").iterdir()
        return os.fsencode(path) in arguments or any(file.resolve().parent == place for file in files)
    except OSError:
        return False


def _lock_directory(run_dir: RunDir) -> int:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        with contextlib.suppress(FileNotFoundError):  # the orphans of a killed launcher remove it
            _make_directory(run_dir)
            lock = try_lock(run_dir)
            if lock is not None:
                return lock
        if time.monotonic() >= deadline:
            raise UsageError(
                f"--run-dir: another server runs in {run_dir.path}; stop it, or choose another --port or --run-dir"
            )
        time.sleep(0.02)


def _make_directory(run_dir: RunDir) -> None:
    """Makes the directory private, with a lock file in it.

    Raises `UsageError`, and `FileNotFoundError` if the directory vanishes meanwhile.
    """
    path, lock_name = run_dir.path, run_dir.lock_file.name
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--run-dir: {path} cannot be created: {error.strerror}") from None
    try:
        with own_directory(path) as directory:
            names = names_in(directory)
            if names and lock_name not in names:
                raise UsageError(
                    f"--run-dir: {path} contains files that are not a server's; choose an empty or new directory"
                )
            os.fchmod(directory, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(lock_name, flags, 0o600, dir_fd=directory))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"--run-dir: {path} cannot be used: {error.strerror}") from None
