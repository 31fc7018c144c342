"""The CPU as a device: work is done when it is submitted or, if other threads have begun it, when its result is
requested."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial

import torch
from torch import Tensor

from scheduler_proc.computing.backends.cpu.populate import PagePopulation
from scheduler_proc.computing.sampling.logprobs import MAX_LOGITS
from scheduler_proc.computing.sampling.results import Result


class SubmittedWork:
    """Work whose result is computed when it is first requested; other threads may already have begun it."""

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


UNOBSERVED = nullcontext()


class CpuDevice:
    """`population` and `slot_population`, once they are set, get memory for pages and for the slots in the column
    `slot_column` of `Batch` before these are used, and little of it during steps."""

    has_own_processor = False
    max_logits = MAX_LOGITS

    def __init__(self) -> None:
        self.population: PagePopulation | None = None
        self.slot_population: PagePopulation | None = None
        self.slot_column = ""
        self.has_begun = False
        """Set when other threads have begun the work that is submitted next."""
        self._last: SubmittedWork | None = None

    def submit(self, work: Callable[[], Result]) -> SubmittedWork:
        if self._last is not None:
            with suppress(Exception):  # raised again when its result is requested
                self._last.wait()
            self._last = None
        submitted = SubmittedWork(partial(self._do, work))
        if self.has_begun:
            self.has_begun, self._last = False, submitted
        else:
            submitted.wait()
        return submitted

    def allocate_host(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def send(self, host: Tensor) -> Tensor:
        return host

    def will_write(self, pages: Sequence[int]) -> None:
        if self.population is not None:
            self.population.use(max(pages), len(pages))

    def _do(self, work: Callable[[], Result]) -> Result:
        with self.population or UNOBSERVED, self.slot_population or UNOBSERVED:
            return work()
