"""Chat templates run in a child process: one that takes too much time or memory ends that process and nothing else.

A limit on memory is the process's, and in this one libraries' threads end the process when they cannot allocate.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import IO, Protocol

import msgspec

from messages.errors import ErrorInfo, RequestError, bad_request
from messages.requests import ChatPrompt
from runtime.chat_files import ChatFiles

ROOT = Path(__file__).resolve().parents[1]

MAX_CPU_S = 2.0
"""Of one rendering. Real ones take less than a millisecond for each message."""

MAX_WAIT_S = 60.0
"""For a process that gets no CPU time; it is ended then."""


class ChatRenderer(Protocol):
    def render(self, chat: ChatPrompt) -> str:
        """Returns the chat as text. Raises `RequestError`, a 400 with the template's own words if it refuses."""
        ...


class _EndedError(Exception):
    def __init__(self, exit_code: int):
        super().__init__(exit_code)
        self.exit_code = exit_code


class TemplateProcess:
    """The chat templates of `files` in a process of their own; it is replaced when it has ended."""

    def __init__(self, files: ChatFiles, cpu_s: float = MAX_CPU_S):
        self._files = msgspec.msgpack.encode(files)
        self._cpu_s = cpu_s
        self._begin()

    @property
    def pid(self) -> int:
        return self._child.pid

    def find_mistake(self) -> str | None:
        """Returns what is wrong with the default template, `None` for a good one, once it is compiled."""
        try:
            return self._wait_for_templates()
        except _EndedError as error:
            return self._explain(error)

    def render(self, chat: ChatPrompt) -> str:
        """See `ChatRenderer`."""
        try:
            return self._render(chat)
        except _EndedError as error:
            if error.exit_code == -signal.SIGPROF:
                raise self._refusal(error) from None
        try:
            return self._render(chat)  # the process may have been killed for another reason
        except _EndedError as error:
            raise self._refusal(error) from None

    def _render(self, chat: ChatPrompt) -> str:
        self._wait_for_templates()
        answer = msgspec.msgpack.decode(self._ask(msgspec.msgpack.encode(chat)), type=str | ErrorInfo)
        if isinstance(answer, ErrorInfo):
            raise RequestError(answer)
        return answer

    def _begin(self) -> None:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tokenizer_proc.template_child", f"{self._cpu_s}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        self._end = weakref.finalize(self, _end, self._child)
        self._end.atexit = False  # a thread may be reading; the child ends with this process
        self._is_new = True
        self._mistake: str | None = None

    def _wait_for_templates(self) -> str | None:
        if self._is_new:
            self._mistake = msgspec.msgpack.decode(self._ask(self._files), type=str | None)
            self._is_new = False
        return self._mistake

    def _ask(self, frame: bytes) -> bytes:
        """Returns the answer of the child. Raises `_EndedError` if it ends instead; another one begins then."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            write_frame(self._child.stdin, frame)
            is_there = bool(select.select([self._child.stdout], [], [], MAX_WAIT_S)[0])
            answer = read_frame(self._child.stdout) if is_there else None
        except BrokenPipeError:
            answer = None
        if answer is not None:
            return answer
        exit_code = self._end() or 0
        self._begin()
        raise _EndedError(exit_code)

    def _refusal(self, error: _EndedError) -> RequestError:
        return bad_request(f"The chat template refused the messages: {self._explain(error)}", "messages")

    def _explain(self, error: _EndedError) -> str:
        if error.exit_code == -signal.SIGPROF:
            return f"it has worked for {self._cpu_s:g} s and is not done"
        return f"it has ended the process that renders it (exit code {error.exit_code})"


def write_frame(sink: IO[bytes], frame: bytes) -> None:
    sink.write(len(frame).to_bytes(8, "little"))
    sink.write(frame)
    sink.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """Returns the next frame, `None` at the end of the stream."""
    head = source.read(8)
    frame = source.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
    return frame if len(head) == 8 and len(frame) == int.from_bytes(head, "little") else None


def _end(child: "subprocess.Popen[bytes]") -> int:
    """Ends the process and returns its exit code."""
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    try:
        return child.wait(1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
