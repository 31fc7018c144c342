"""Commands from HTTP to the launcher; each waits for its answer without blocking anything else."""

import asyncio
import itertools
from collections.abc import Callable

from messages.control.admin import AdminCommand, Answer, Failed, Progress, Result


class Launcher:
    """The launcher as endpoints see it. `send` takes an id and a command; pass each answer to `accept`."""

    def __init__(self, send: Callable[[int, AdminCommand], None]):
        self._send = send
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._content_with_progress: set[int] = set()

    async def ask(self, command: AdminCommand, timeout_s: float, *, until_progress: bool = False) -> Result:
        """Returns the result, a `Failed` on a timeout, or with `until_progress` the first progress."""
        ask_id = next(self._ids)
        self._waiting[ask_id] = asyncio.get_running_loop().create_future()
        if until_progress:
            self._content_with_progress.add(ask_id)
        try:
            self._send(ask_id, command)
            async with asyncio.timeout(timeout_s):
                return await self._waiting[ask_id]
        except TimeoutError:
            return Failed("timeout", f"the launcher did not answer within {timeout_s:g} s")
        finally:
            del self._waiting[ask_id]
            self._content_with_progress.discard(ask_id)

    def accept(self, answer: Answer) -> None:
        """Passes an answer to its caller, if that is still waiting."""
        waiting = self._waiting.get(answer.ask_id)
        if waiting is None or waiting.done():
            return
        if not isinstance(answer.result, Progress) or answer.ask_id in self._content_with_progress:
            waiting.set_result(answer.result)
