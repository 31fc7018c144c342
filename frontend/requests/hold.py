"""New requests that wait, for a limited time, while a process of the ring is being replaced."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from frontend.requests.generation import Generation


@dataclass(eq=False)
class RestartHold:
    """Holds requests that have not been sent until they may enter the ring, at most `hold_s` after their arrival.

    `send` is then called with the choices for each prompt. `refuse` is called, with the reason, for a request that
    waited too long, cannot be sent, or whose process will not come back.
    """

    _hold_s: float
    _processes: ProcessView
    _send: Callable[[Sequence[Generation]], None]
    _refuse: Callable[[Generation, UnavailableError], None]
    _held: dict[int, tuple[Generation, asyncio.TimerHandle]] = field(
        default_factory=dict[int, tuple[Generation, asyncio.TimerHandle]]
    )

    def __len__(self) -> int:
        return len(self._held)

    def add(self, generation: Generation) -> None:
        """Holds a request that has not been sent."""
        waited_s = time.monotonic() - generation.message.stamps.received_ns / 1e9
        timer = asyncio.get_running_loop().call_later(max(0.0, self._hold_s - waited_s), self._expire, generation)
        self._held[generation.uid] = generation, timer

    def forget(self, generation: Generation) -> None:
        """Removes a request that has ended. May be called for one that is not held."""
        entry = self._held.pop(generation.uid, None)
        if entry is not None:
            entry[1].cancel()

    def follow(self) -> None:
        """Call it after each process table, once interrupted requests have been resent: those arrived earlier."""
        if self._processes.is_open:
            for choices in self._pop_all():
                try:
                    self._send(choices)
                except UnavailableError as error:
                    for generation in choices:
                        self._refuse(generation, error)
        elif not self._processes.is_recovering:
            for choices in self._pop_all():
                for generation in choices:
                    self._refuse(generation, self._processes.not_ready())

    def _expire(self, generation: Generation) -> None:
        self.forget(generation)
        self._refuse(generation, self._processes.not_ready())

    def _pop_all(self) -> list[list[Generation]]:
        """Removes and returns all requests, by priority and then by arrival.

        The choices for one prompt are grouped.
        """
        held = [generation for generation, _ in self._held.values()]
        for generation in held:
            self.forget(generation)
        held.sort(key=lambda generation: generation.message.sampling_params.priority)
        return [list(choices) for _, choices in groupby(held, key=_prompt_of)]


def _prompt_of(generation: Generation) -> tuple[int, int]:
    """Returns a key that the choices for one prompt share, and no other request has. A part has its own."""
    message = generation.message
    if generation.is_part:
        return generation.uid, 0
    return id(generation.changed), id(message.chat or message.prompt_text or message.prompt_ids)
