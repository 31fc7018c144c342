"""What computes parts of a step in the host's memory.

Shape legend: T tokens, E embedding size, X experts.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor


class HostParts(Protocol):
    """Computes parts of steps in the host's memory, which is another than the device's."""

    def begin(
        self, normed_TE: Tensor, logits_TX: Tensor, compute: Callable[[Any], None], *, is_overlapped: bool
    ) -> Callable[[], Tensor]:
        """Begins the copies to the host's room (`Activations`): to `normed`, and to the begin of `routes`.

        The returned function waits for them, calls `compute` with the room, and returns a copy of its `update` on the
        device. With `is_overlapped`, the device is given other work before.
        """
        ...
