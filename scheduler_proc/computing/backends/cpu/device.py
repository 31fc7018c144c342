"""The CPU as a device: work is done when it is submitted or, if other threads have begun it, when its result is
requested."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from scheduler_proc.computing.backends.cpu.populate import PagePopulation
from scheduler_proc.computing.sampling.logprobs import MAX_LOGITS
from scheduler_proc.computing.sampling.results import Result


class Done(NamedTuple):
    """A result that is available."""

    result: Result
    has_ended = True

    def wait(self) -> Result:
        return self.result


class Begun:
    """Work that other threads have begun; the rest is done when its result is requested."""

    def __init__(self, work: Callable[[], Result]):
        self._work = work
        self._result: Result | None = None

    @property
    def has_ended(self) -> bool:
        return self._result is not None

    def wait(self) -> Result:
        if self._result is None:
            self._result = self._work()
        return self._result


class CpuDevice:
    """`population`, once it is set, gets memory for pages before they are used, and little of it during steps."""

    has_own_processor = False
    max_logits = MAX_LOGITS

    def __init__(self) -> None:
        self.population: PagePopulation | None = None
        self.has_begun = False
        """Set when other threads have begun the work that is submitted next."""
        self._last: Begun | None = None

    def submit(self, work: Callable[[], Result]) -> Done | Begun:
        if self._last is not None:
            with suppress(Exception):  # raised again when its result is requested
                self._last.wait()
            self._last = None
        if self.has_begun:
            self.has_begun, self._last = False, Begun(lambda: self._do(work))
            return self._last
        return Done(self._do(work))

    def allocate_host(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def send(self, host: Tensor) -> Tensor:
        return host

    def will_write(self, pages: Sequence[int]) -> None:
        if self.population is not None:
            self.population.use(max(pages), len(pages))

    def _do(self, work: Callable[[], Result]) -> Result:
        if self.population is None:
            return work()
        with self.population:
            return work()
