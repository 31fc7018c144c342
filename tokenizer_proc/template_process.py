"""Runs chat templates in a child process: one that takes too much time or memory ends that process and nothing else.

A memory limit applies to a whole process. The tokenizer cannot have one: its libraries abort if an allocation fails.
"""

import signal
from typing import Protocol

import msgspec

from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.requests import ChatPrompt
from runtime.chat_files import ChatFiles
from tokenizer_proc.child_process import ChildEndedError, ChildProcess

MAX_CPU_S = 2.0
"""The limit for one rendering. Real templates take less than a millisecond per message."""

MAX_WAIT_S = 60.0
"""How long to wait for a process that gets no CPU time, before it is killed."""


class ChatRenderer(Protocol):
    def render(self, chat: ChatPrompt) -> str:
        """Returns the chat as text. Raises `RequestError`, a 400 with the template's own words if it refuses."""
        ...


class TemplateProcess:
    """Renders with the templates of `files`, in a child process that is replaced if it ends."""

    def __init__(self, files: ChatFiles, cpu_s: float = MAX_CPU_S):
        self._files = msgspec.msgpack.encode(files)
        self._cpu_s = cpu_s
        self._begin()

    @property
    def pid(self) -> int:
        return self._child.pid

    def find_mistake(self) -> str | None:
        """Waits until the default template is compiled; returns its error, `None` if it has none."""
        try:
            return self._wait_for_templates()
        except ChildEndedError as error:
            return self._explain(error)

    def render(self, chat: ChatPrompt) -> str:
        """See `ChatRenderer`."""
        try:
            return self._render(chat)
        except ChildEndedError as error:
            if error.exit_code == -signal.SIGPROF:
                raise self._refusal(error) from None
        try:
            return self._render(chat)  # the process may have been killed for another reason
        except ChildEndedError as error:
            raise self._refusal(error) from None

    def _render(self, chat: ChatPrompt) -> str:
        self._wait_for_templates()
        answer = msgspec.msgpack.decode(self._ask(msgspec.msgpack.encode(chat)), type=str | ErrorInfo)
        if isinstance(answer, ErrorInfo):
            raise RequestError(answer)
        return answer

    def _begin(self) -> None:
        self._child = ChildProcess("tokenizer_proc.template_child", f"{self._cpu_s}")
        self._is_new = True
        self._mistake: str | None = None

    def _wait_for_templates(self) -> str | None:
        if self._is_new:
            self._mistake = msgspec.msgpack.decode(self._ask(self._files), type=str | None)
            self._is_new = False
        return self._mistake

    def _ask(self, frame: bytes) -> bytes:
        """Returns the child's reply. Raises `ChildEndedError` after starting a new child."""
        try:
            return self._child.ask(frame, MAX_WAIT_S)
        except ChildEndedError:
            self._begin()
            raise

    def _refusal(self, error: ChildEndedError) -> RequestError:
        return bad_request(f"The chat template refused the messages: {self._explain(error)}", "messages")

    def _explain(self, error: ChildEndedError) -> str:
        if error.exit_code == -signal.SIGPROF:
            return f"it has worked for {self._cpu_s:g} s and is not done"
        return f"it has ended the process that renders it (exit code {error.exit_code})"
