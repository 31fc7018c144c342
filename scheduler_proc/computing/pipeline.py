"""The stages of an engine, each with some of the layers (`--pipeline-parallel`), and the hops between them.

The scheduler is in the last stage, which samples; ranks 1, 2 … are in the stages 0, 1 … With several ranks in a stage
they are counted stage by stage, from the scheduler's on; each sends to the one of its own number in the next stage.

Shape legend: T tokens.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scheduler_proc.computing.parallel import ALONE, ParallelGroup

MAX_UNRECEIVED = 8
"""The messages that a stage keeps for a next one which is behind; then it waits."""


class StagePlace(NamedTuple):
    """The place of a rank: its stage, and its number among the ranks of that stage."""

    stage: int = 0
    num_stages: int = 1
    rank: int = 0
    num_ranks: int = 1

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def number_in(self, stage: int) -> int:
        """Returns the number in its engine of the rank with this place in another stage; 0 is the scheduler's."""
        return (stage + 1) % self.num_stages * self.num_ranks + self.rank


ONLY_STAGE = StagePlace()


def find_place(number: int, num_ranks: int, num_stages: int) -> StagePlace:
    """Returns the place of the engine's rank with this number; `num_ranks` are in each stage."""
    return StagePlace((number // num_ranks - 1) % num_stages, num_stages, number % num_ranks, num_ranks)


class Pipeline:
    """A rank's end of the hops. Neighbours compute the same steps in the same order.

    `everyone`: all ranks of the engine; `within`: those of this stage.
    """

    def __init__(self, place: StagePlace = ONLY_STAGE, everyone: ParallelGroup = ALONE, within: ParallelGroup = ALONE):
        self.place, self.everyone, self.within = place, everyone, within
        self.computing_s = self.waiting_s = 0.0
        """The seconds that this stage has computed since the start, and waited for messages of the previous one."""
        self.split = ""
        """In the scheduler: the layers of each stage and why, if that was not set by hand."""
        self._sent: deque[tuple[Any, Tensor]] = deque()

    @contextmanager
    def hops(self, parts: list[Tensor]) -> Iterator[None]:
        """Computes a step in the block, which finds what the previous stage sent in `parts` and leaves the next one's.

        The first stage receives nothing, and the last one sends nothing.
        """
        if not self.place.is_first:
            self.receive(*parts)
        began_s = time.monotonic()
        yield
        self.computing_s += time.monotonic() - began_s
        if not self.place.is_last:
            self.send(*parts)

    def receive(self, *parts: Tensor) -> None:
        """Overwrites `parts`, each [T, …], with the columns that the previous stage sends for its next step."""
        began_s = time.monotonic()
        sizes = [part.shape[1] for part in parts]
        message = parts[0] if len(parts) == 1 else parts[0].new_empty(len(parts[0]), sum(sizes))
        self.everyone.receive(message, self.place.number_in(self.place.stage - 1))
        if len(parts) > 1:
            for part, columns in zip(parts, message.split(sizes, dim=1), strict=True):
                part.copy_(columns)
        self.waiting_s += time.monotonic() - began_s

    def send(self, *parts: Tensor) -> None:
        """Sends the columns to the next stage, which may receive them later; `parts` may change afterwards."""
        message = torch.cat(parts, dim=1)
        self._sent.append((self.everyone.send(message, self.place.number_in(self.place.stage + 1)), message))
        while len(self._sent) > MAX_UNRECEIVED:
            self.everyone.wait(self._sent.popleft()[0])

    def begin_service(self) -> None:
        """Forgets the time that warming up took."""
        self.computing_s = self.waiting_s = 0.0

    def gauges(self) -> dict[str, float]:
        """Returns the numbers by which stages are compared."""
        return {"stage": self.place.stage + 1, "computing_s": self.computing_s, "waiting_s": self.waiting_s}


WHOLE = Pipeline()
"""A rank that computes alone."""
