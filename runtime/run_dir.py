"""The run directory: a private directory with the sockets, pids and configuration of one run."""

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

import msgspec

from messages.config.server import Config
from messages.errors import BootError, UsageError
from messages.program import START
from runtime.own_directory import empty_directory, names_in, own_directory

MAX_IPC_PATH_BYTES = 107
LONGEST_SOCKET_NAME = "frontend.999999.sock"
LOCK_PATIENCE_S = 0.3
"""How long to wait for the lock: a dying launcher, or a process that clears the run, holds it for a moment."""


class RunDir:
    """The paths in one run directory. Creating the object does not touch the disk."""

    def __init__(self, path: Path):
        self.path = path
        self.config_file = path / "config.json"
        self.lifeline = path / "lifeline"
        """A FIFO whose write end the launcher holds: end of file means that the launcher is gone."""
        self.lock_file = path / "run.lock"
        """Its name identifies a directory that a killed launcher left behind."""
        self.address_file = path / "address"
        """Contains `http://host:port` (or https), or `unix:PATH`; an engine that joined a server has none."""
        self.http_socket = path / "http"
        """The socket of PATH: where the server of a model among several listens."""
        self.black_box = path / "black-box"
        """The directory of the processes' last frames (`runtime/black_box/`), if they are recorded."""
        self.images = path / "images"
        """The directory of the images of open requests, in files named after the digests of their bytes."""
        self.profiles = path / "profiles"
        """The directory of the profiles to merge, if there are any."""
        self.head_keys = path / "head.key"
        """The keys with which the head authenticates engines on other machines, if it accepts any."""
        self.join_keys = path / "join.key"
        """The keys with which those engines join; their operators copy the file."""
        self.weights_file = path / "weights"
        """A link to the launcher's in-memory file for the weights that all schedulers share."""

    def socket(self, receiver: str) -> Path:
        """Returns the ipc socket that process `receiver` binds (`launcher` for the control plane)."""
        return self.path / f"{receiver}.sock"

    def sockets(self) -> list[str]:
        """Returns the names of the receivers whose sockets exist."""
        return [path.stem for path in self.path.glob("*.sock")]

    def pid_file(self, process: str) -> Path:
        return self.path / f"{process}.pid"

    def record_pid(self, process: str, pid: int) -> None:
        """Writes the pid file if the disk allows it. Without one, only `clear_run` cannot find the process."""
        with contextlib.suppress(OSError):
            self.pid_file(process).write_text(f"{pid}", encoding="ascii")

    def kv_file(self, name: str) -> Path:
        """Returns the link to the launcher's in-memory file for the KV cache of scheduler `name`, if it has one."""
        return self.path / f"{name}.kv-cache"

    def rows_file(self, name: str) -> Path:
        """Returns the link to the launcher's in-memory file for the encodings of images of scheduler `name`."""
        return self.path / f"{name}.rows"

    def work_file(self, name: str) -> Path:
        """Returns the file that names the image on which encoder `name` works; it outlives the process."""
        return self.path / f"{name}.work"

    def weights_of(self, rank: int) -> Path:
        """Returns the link to the in-memory file for the weights that a rank of an engine has."""
        return self.weights_file.with_name(f"{self.weights_file.name}.{rank}") if rank else self.weights_file

    def ranks_file(self, name: str) -> Path:
        """Returns the file through which the ranks of scheduler `name` find each other."""
        return self.path / f"{name}.ranks"

    def stacks_file(self, pid: int) -> Path:
        """Returns the file for the thread stacks of process `pid`. Once it exists, stacks may be requested."""
        return self.path / "stacks" / f"{pid}"

    def write_config(self, config: Config) -> None:
        self.config_file.write_bytes(msgspec.json.format(msgspec.json.encode(config)))

    def read_config(self) -> Config:
        """Raises `BootError` if there is no run in this directory."""
        try:
            return msgspec.json.decode(self.config_file.read_bytes(), type=Config)
        except FileNotFoundError:
            raise BootError(f"no server runs in {self.path}: start one with `{START} --run-dir {self.path}`") from None
        except msgspec.DecodeError as error:
            raise BootError(f"{self.config_file}: written by another version of this program: {error}") from None

    def pids(self) -> dict[str, int]:
        """Returns the pids of the processes that have written theirs, by name."""
        found: dict[str, int] = {}
        for file in self.path.glob("*.pid"):
            with contextlib.suppress(FileNotFoundError):
                text = file.read_text(encoding="ascii", errors="replace")
                if text.isdigit():
                    found[file.stem] = int(text)
        return found

    def remove(self) -> None:
        """Removes the directory and its contents. No-op if it is already gone.

        The lock file is removed last: it shows a launcher that starts meanwhile that it may take over the directory.
        """
        with contextlib.suppress(OSError):
            with own_directory(self.path) as directory:
                empty_directory(directory, kept=self.lock_file.name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.lock_file.name, dir_fd=directory)
            self.path.rmdir()


def default_path(name: int | str) -> Path:
    """Returns the default run directory for port `name`, or for another kind of run: a short path, one per user."""
    root = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = Path(root) if root and Path(root).is_dir() else Path("/tmp")
    return parent / f"sluice-{os.getuid()}-{name}"


def claim(path: Path) -> tuple[RunDir, int]:
    """Creates the run directory, or takes over an abandoned one and kills the processes still running in it.

    Returns the directory, with an absolute path, and the descriptor of the lock, which must stay open during the run.
    Raises `UsageError` if another launcher holds the lock, the path is too long for a socket, or the directory is not
    this user's own.
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
    """Kills the other processes in a run directory whose lock the caller holds. Returns their pids."""
    pids = other_processes(run_dir)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def other_processes(run_dir: RunDir) -> list[int]:
    """Returns the pids of the processes in this run directory, except the caller's."""
    return [pid for pid in run_dir.pids().values() if pid != os.getpid() and _runs_in(pid, run_dir.path)]


def _runs_in(pid: int, path: Path) -> bool:
    """True if process `pid` was started with this run directory or has a file open in it.

    This protects processes that reuse a pid from being killed.
    """
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
