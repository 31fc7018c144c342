"""The operator's connection to a running server: sends a command and waits for its result."""

import time
from collections.abc import Callable
from typing import Self

from messages.channels import AskClient, Waiter
from messages.control.admin import AdminCommand, Answer, Ask, Failed, Progress, Result
from runtime.lifeline import has_launcher
from runtime.run_dir import RunDir
from supervisor.client.running import NoServerError

LOOK_S = 1.0
"""The interval at which the command checks that the server still runs."""


def ignore(text: str) -> None:
    """The `on_progress` of those who do not care."""


class AdminClient:
    """One connection to the launcher of a run; one command at a time."""

    def __init__(self, run_dir: RunDir):
        self._run_dir = run_dir
        self._client: AskClient[Answer] = AskClient(run_dir.socket("operator"), Answer)
        self._waiter = Waiter()
        self._waiter.add_channel(self._client)
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def give(self, command: AdminCommand, timeout_s: float, on_progress: Callable[[str], None] = ignore) -> Result:
        """Returns the result of `command`, or a `Failed` if neither that nor progress comes in time.

        Raises `NoServerError` if the server ends without a result.
        """
        self._last_id += 1
        self._client.ask(Ask(self._last_id, command))
        deadline_s = time.monotonic() + timeout_s
        is_alive = True
        while is_alive and time.monotonic() < deadline_s:
            is_alive = has_launcher(self._run_dir)
            self._waiter.wait(min(LOOK_S, max(0.0, deadline_s - time.monotonic())) if is_alive else 0.0)
            for answer in self._client.receive():
                if answer.ask_id != self._last_id:
                    continue
                if not isinstance(answer.result, Progress):
                    return answer.result
                on_progress(answer.result.text)
                deadline_s = time.monotonic() + timeout_s
        if not is_alive:
            raise NoServerError(f"the server in {self._run_dir.path} has ended")
        return Failed("timeout", f"no answer within {timeout_s:g} s")
