"""The processor that plans steps as the device that computes them: work is done when it is submitted."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scheduler_proc.computing.cpu.populate import PagePopulation
from scheduler_proc.computing.step.results import Result


class Done(NamedTuple):
    """A result that is there."""

    result: Result

    def wait(self) -> Result:
        return self.result


class CpuDevice:
    """`population`, once it is there, gets memory for pages before they are used, and little while work is done."""

    def __init__(self) -> None:
        self.population: PagePopulation | None = None

    def submit(self, work: Callable[[], Result]) -> Done:
        if self.population is None:
            return Done(work())
        with self.population:
            return Done(work())

    def allocate_host(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def send(self, host: Tensor) -> Tensor:
        return host

    def will_write(self, pages: Sequence[int]) -> None:
        if self.population is not None:
            self.population.use(max(pages), len(pages))
