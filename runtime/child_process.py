"""Child processes that reply to one frame at a time over pipes. Work on untrusted input can end only the child.

A frame is its length (8 bytes, little-endian) and its body.
"""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import IO

from runtime.forked_process import ForkedProcess, open_process
from runtime.lifeline import ask_for_death_signal

ROOT = Path(__file__).resolve().parents[1]


class ChildEndedError(Exception):
    """The child ended instead of replying."""

    def __init__(self, exit_code: int):
        super().__init__(exit_code)
        self.exit_code = exit_code

    @property
    def is_ours(self) -> bool:
        """True if the child failed on its own, or was killed from outside, so its input is not to blame."""
        return self.exit_code >= 0 or self.exit_code == -signal.SIGKILL


class ChildTimeoutError(ChildEndedError):
    """The child was killed because it did not reply in time."""


class ChildProcess:
    """Runs `python -m module PARENT_PID *arguments`. Only one thread may call `ask` at a time."""

    def __init__(self, module: str, *arguments: str):
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = open_process(
            [sys.executable, "-P", "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        self.pid = self._process.pid
        self.end = weakref.finalize(self, _end, self._process)
        """Kills the process if it still runs."""
        self.end.atexit = False  # a thread may be reading, and the child dies with this process

    def send(self, frame: bytes) -> None:
        """Sends a frame without waiting for the reply."""
        assert self._process.stdin is not None
        write_frame(self._process.stdin, frame)

    def ask(self, frame: bytes, timeout_s: float) -> bytes:
        """Returns the child's reply to a frame. Raises `ChildEndedError` after ending the child."""
        with contextlib.suppress(BrokenPipeError):
            self.send(frame)
        return self.read(timeout_s)

    def read(self, timeout_s: float) -> bytes:
        """Returns the child's next frame. Raises `ChildEndedError` after ending the child."""
        assert self._process.stdout is not None
        has_timed_out = False
        with contextlib.suppress(BrokenPipeError):
            has_timed_out = not select.select([self._process.stdout], [], [], timeout_s)[0]
            reply = None if has_timed_out else read_frame(self._process.stdout)
            if reply is not None:
                return reply
        self.end()
        raise (ChildTimeoutError if has_timed_out else ChildEndedError)(self._process.wait())


class RestartedChild:
    """A child process that is replaced if it ends. `greeting` is the first frame that each one gets, if there is one.

    `limit_signal` is the signal that ends a child when it exceeds its CPU limit.
    """

    def __init__(self, module: str, *arguments: str, limit_signal: int, greeting: bytes = b""):
        self._command = module, *arguments
        self._greeting = greeting
        self._limit_signal = limit_signal
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ChildProcess:
        """Starts the child now instead of at the first `ask`."""
        self._process = ChildProcess(*self._command)
        with contextlib.suppress(BrokenPipeError):
            if self._greeting:
                self._process.send(self._greeting)
        return self._process

    def ask(self, frame: bytes, timeout_s: float) -> bytes:
        """Returns the reply to a frame. Raises `ChildEndedError`; the next frame then gets a new child.

        A child that may have been killed for a reason other than this frame is replaced once.
        """
        try:
            return self._ask(frame, timeout_s)
        except ChildTimeoutError:
            raise
        except ChildEndedError as error:
            if error.exit_code == -self._limit_signal:
                raise
        return self._ask(frame, timeout_s)

    def _ask(self, frame: bytes, timeout_s: float) -> bytes:
        try:
            return (self._process or self.start()).ask(frame, timeout_s)
        except ChildEndedError:
            self._process = None
            raise

    def close(self) -> None:
        """Ends the child, if there is one."""
        if self._process is not None:
            self._process.end()


def lower_limit(kind: int, value: int) -> None:
    """Sets a soft limit of this process to `value`, or to its hard limit if that is less; the hard one is kept."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def limit_added_memory(num_bytes: int) -> None:
    """Limits this process to `num_bytes` more memory than it has now (Linux only)."""
    with contextlib.suppress(OSError):
        num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        lower_limit(resource.RLIMIT_AS, num_pages * resource.getpagesize() + num_bytes)


def open_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Returns the child's streams of requests and replies. Call it first: the child then dies with its parent."""
    ask_for_death_signal(int(sys.argv[1]), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and thereby this process
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    return sys.stdin.buffer, replies


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(8, "little"))
    stream.write(body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Returns the next frame, `None` at the end of the stream."""
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    body = stream.read(size) if len(head) == 8 else b""
    return body if len(head) == 8 and len(body) == size else None


def _end(process: subprocess.Popen[bytes] | ForkedProcess) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.close()
