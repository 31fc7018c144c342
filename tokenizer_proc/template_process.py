"""Runs chat templates in a child process. A template that takes too much time or memory ends only that process.

A memory limit applies to a whole process. The tokenizer cannot have one: its libraries abort if an allocation fails.
"""

import signal
from typing import Protocol

import msgspec

from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.requests import ChatPrompt
from runtime.chat_files import ChatFiles
from runtime.child_process import ChildEndedError, ChildTimeoutError, RestartedChild
from tokenizer_proc.image_forms import ImagePieces

MAX_CPU_S = 2.0
"""The limit for one rendering. Real templates take less than a millisecond per message."""

MAX_WAIT_S = 60.0
"""How long to wait before killing a child that gets no CPU time."""


class ChatRenderer(Protocol):
    def render(self, chat: ChatPrompt) -> str | ImagePieces:
        """Returns the chat as text, in pieces if it has images (`number_images`).

        Raises `RequestError`, a 400 with the template's own words if it refuses.
        """
        ...


class TemplateProcess(RestartedChild):
    """Renders with the templates of `files`, in a child process that is replaced if it ends."""

    def __init__(self, files: ChatFiles, cpu_s: float = MAX_CPU_S):
        greeting = msgspec.msgpack.encode(files)
        super().__init__("tokenizer_proc.template_child", f"{cpu_s}", greeting=greeting, limit_signal=signal.SIGPROF)
        self._cpu_s = cpu_s
        self.start()

    def find_mistake(self) -> str | None:
        """Waits until the default template is compiled. Returns its error, `None` if it is valid."""
        try:
            return msgspec.msgpack.decode(self.ask(b"", MAX_WAIT_S), type=str | None)
        except ChildEndedError as error:
            return self._explain(error)

    def render(self, chat: ChatPrompt) -> str | ImagePieces:
        """See `ChatRenderer`."""
        try:
            reply = self.ask(msgspec.msgpack.encode(chat), MAX_WAIT_S)
        except ChildEndedError as error:
            self.start()
            if isinstance(error, ChildTimeoutError):
                words = f"the chat was not rendered within {MAX_WAIT_S:g} s, try again later"
                raise RequestError(ErrorInfo(503, words, "service_unavailable", "messages", "busy")) from None
            if error.is_ours:
                raise  # the caller logs it and refuses the request with 500
            reason = self._explain(error)
            raise bad_request(f"The chat template refused the messages: {reason}", "messages") from None
        answer = msgspec.msgpack.decode(reply, type=str | ImagePieces | ErrorInfo)
        if isinstance(answer, ErrorInfo):
            raise RequestError(answer)
        return answer

    def _explain(self, error: ChildEndedError) -> str:
        if error.exit_code == -signal.SIGPROF:
            return f"it has worked for {self._cpu_s:g} s and is not done"
        return f"it has ended the process that renders it (exit code {error.exit_code})"
