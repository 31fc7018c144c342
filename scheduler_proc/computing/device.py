"""What a runner needs from a device of any kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from messages.ring.steps import Batch
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors
from scheduler_proc.computing.sampling.results import Forwarded, Result

Forward = Callable[[], Forwarded]
"""Runs the forward pass of one step and stores the K and V of its tokens in the cache. Raises `MemoryError`."""


class Fetched(Protocol):
    """A result on its way to the host."""

    @property
    def has_ended(self) -> bool:
        """True if the work is known to be done."""
        ...

    def wait(self) -> Result:
        """Waits for the result and returns it in host memory."""
        ...


class Device(Protocol):
    """Does work in the order in which it is submitted. Only `Fetched` waits for any of it."""

    has_own_processor: bool
    """Threads of the host do not slow down its work."""
    max_logits: int
    """The number of logits that logprobs are computed from at a time: those of a whole prompt might not fit."""

    def submit(self, work: Callable[[], Result]) -> Fetched:
        """Launches the work and the copy of its result to the host. Raises what the work raises."""
        ...

    def allocate_host(self, num_bytes: int) -> Tensor:
        """Returns a buffer (uint8) for copies; it may be dropped as soon as they are launched."""
        ...

    def send(self, host: Tensor) -> Tensor:
        """Returns a copy of the buffer on the device for the work being launched, without waiting for the copy."""
        ...

    def will_write(self, pages: Sequence[int]) -> None:
        """Called before something other than a step writes these pages of the cache."""


class ForwardPasses(Protocol):
    """The forward passes of a model on a device: replayed if the step has a capture, otherwise call by call."""

    last_tokens: Tensor | None
    """A step's tokens, kept for the next step; `None` if no step is launched before they are known."""
    cache: KVTensors
    can_plan_ahead: bool
    """Some steps run while the host does something else, until their result is requested."""

    def prepare(self, batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        """Writes the step, and the columns of its sampling plan, to the memory that its forward pass reads.

        The returned function runs it once; on some devices, before the next step is prepared.
        """
        ...
