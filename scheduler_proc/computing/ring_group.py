"""All ranks of an engine with stages on other machines, as a ring: each sends to the next one, the last to the first.

A stage sends its hidden states to the next rank, and numbers go around. Other machines have no other connection.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from scheduler_proc.computing.parallel import ParallelGroup


class Neighbours(Protocol):
    """The way to the next rank, and from the previous one. Messages arrive in the order in which they are sent."""

    def send(self, data: memoryview) -> None:
        """Sends a copy of the data; never waits."""

    def receive(self) -> bytes:
        """Waits for the next message; ends the process if it cannot come."""
        ...


class RingGroup(ParallelGroup):
    """One rank's end. It only sends to `rank` + 1, and only receives from `rank` - 1."""

    def __init__(self, rank: int, size: int, neighbours: Neighbours):
        super().__init__(rank, size)
        self._neighbours = neighbours

    def gather(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        numbers_of = {self.rank: list(numbers)}
        for distance in range(1, self.size):
            sent = torch.tensor(numbers_of[(self.rank - distance + 1) % self.size])
            self.send(sent, (self.rank + 1) % self.size)
            received = torch.empty_like(sent)
            self.receive(received, (self.rank - 1) % self.size)
            numbers_of[(self.rank - distance) % self.size] = received.tolist()
        return [numbers_of[rank] for rank in range(self.size)]

    def send(self, tensor: Tensor, rank: int) -> None:
        assert rank == (self.rank + 1) % self.size
        self._neighbours.send(_memory(tensor))

    def receive(self, tensor: Tensor, rank: int) -> None:
        assert rank == (self.rank - 1) % self.size
        data, memory = self._neighbours.receive(), _memory(tensor)
        if len(data) != len(memory):
            raise SystemExit(f"rank {self.rank} has received {len(data)} bytes from rank {rank}, not {len(memory)}")
        memory[:] = data

    def wait(self, work: Any) -> None:
        """Messages are copies."""


def _memory(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().reshape(-1).data
