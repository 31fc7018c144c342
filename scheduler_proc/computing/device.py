"""What the runner asks of a device, whichever it is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from messages.ring.steps import Batch
from scheduler_proc.computing.sampling.results import Forwarded, Result

Forward = Callable[[], Forwarded]
"""Runs the forward pass of one step; the cache then holds the K and V of all its tokens. Raises `MemoryError`."""


class Fetched(Protocol):
    """A result on its way to the host."""

    @property
    def has_ended(self) -> bool:
        """Tells whether the work is known to have been done."""
        ...

    def wait(self) -> Result:
        """Returns it, in the host's memory, as soon as the work that makes it has been done."""
        ...


class Device(Protocol):
    """Does work in the order in which it is submitted. Only `Fetched` waits for any of it."""

    has_own_processor: bool
    """Threads of the host do not slow down its work."""
    max_logits: int
    """The number of logits that logprobs are computed from at a time: those of a whole prompt might not fit."""

    def submit(self, work: Callable[[], Result]) -> Fetched:
        """Launches the work, and the copy of its result to the host. Raises what the work raises."""
        ...

    def allocate_host(self, num_bytes: int) -> Tensor:
        """Returns a buffer (uint8) for copies; it may be dropped as soon as they are launched."""
        ...

    def send(self, host: Tensor) -> Tensor:
        """Returns a copy of the buffer on the device for the work that is being launched; does not wait for it."""
        ...

    def will_write(self, pages: Sequence[int]) -> None:
        """Is told which pages of the cache something other than a step is about to write."""
        ...


class ForwardPasses(Protocol):
    """The forward passes of a model on a device: from a capture where there is one for the step, else call by call."""

    last_tokens: Tensor | None
    """Where a step's tokens stay for the next one; `None` where no step is launched before they are known."""
    can_plan_ahead: bool
    """Some steps run while the host does something else, up to the time at which their result is asked for."""

    def prepare(self, batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        """Writes the step, and the columns of its sampling plan, to where its forward pass reads them.

        Returns what runs it, once; on some devices before the next step is prepared.
        """
        ...
