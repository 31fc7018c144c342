"""What is asked of a GPU: pinned memory, work in order, results fetched beside it, captured graphs, memory.

All CUDA calls of the computing half but the operations on tensors are here, so that everything else can be run where
there is no GPU: a test has a device that does the same on a CPU, as late as it may.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from scheduler_proc.computing.device import Device, Fetched
from scheduler_proc.computing.sampling.results import Result
from scheduler_proc.computing.step.packed_columns import join, split

Work = Callable[[], None]

Pool = Any
"""The name of a pool of memory, which only its device understands."""


class GpuDevice(Device, Protocol):
    """A device with memory and graphs of its own."""

    torch_device: torch.device

    def new_pool(self) -> Pool:
        """Returns a pool for graphs that never run side by side; its memory is freed with the last of them."""
        ...

    def capture(self, work: Work, pool: Pool) -> Work:
        """Returns what does the work again, on the same tensors, in one launch. It has been done once before."""
        ...

    def memory(self) -> tuple[int, int]:
        """Returns the bytes that are free and all there are, when everything launched has been done."""
        ...

    def release_unused(self) -> None:
        """Gives back what is kept for later use and not in use now."""
        ...


class CudaDevice:
    """A CUDA device. Work goes to the current stream.

    A step's columns are sent on a stream of their own, beside the step before, and its result is fetched on another,
    beside the next step.
    """

    has_own_processor = True
    max_logits = 1 << 25

    def __init__(self, torch_device: torch.device):
        self.torch_device = torch_device
        self._sending = torch.cuda.Stream(torch_device)
        self._fetching = torch.cuda.Stream(torch_device)

    def allocate_host(self, num_bytes: int) -> Tensor:
        # Torch keeps pinned memory that is dropped, and gives it out again when the copies from and to it are done.
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def send(self, host: Tensor) -> Tensor:
        current = torch.cuda.current_stream(self.torch_device)
        with torch.cuda.stream(self._sending):
            data = host.to(self.torch_device, non_blocking=True)
        current.wait_stream(self._sending)
        data.record_stream(current)
        return data

    def submit(self, work: Callable[[], Result]) -> Fetched:
        try:
            tensors = work()
            assert not isinstance(tensors, np.ndarray), "the host has them"
            result = join(tensors)
        except RuntimeError:
            self._end_if_failed()
            raise
        host = self.allocate_host(result.nbytes)
        self._fetching.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(self._fetching):
            host.copy_(result, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        result.record_stream(self._fetching)
        return _OnItsWay(host, tensors, done)

    def will_write(self, pages: Sequence[int]) -> None:
        pass  # all memory of the cache is there

    def new_pool(self) -> Pool:
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Work, pool: Pool) -> Work:
        graph = torch.cuda.CUDAGraph()
        failure: Exception | None = None
        try:
            # A capture that fails may leave its stream as the current one: the outer context goes back in any case.
            with torch.cuda.stream(torch.cuda.current_stream(self.torch_device)), torch.cuda.graph(graph, pool=pool):
                try:
                    work()
                except Exception as error:
                    failure = error
                    raise
        except Exception as error:
            # Where the work has failed, so does the end of the capture, which does not know why.
            raise failure or error from None
        return graph.replay

    def memory(self) -> tuple[int, int]:
        torch.cuda.synchronize(self.torch_device)
        return torch.cuda.mem_get_info(self.torch_device)

    def release_unused(self) -> None:
        torch.cuda.empty_cache()

    def _end_if_failed(self) -> None:
        """Ends the process where CUDA itself has failed: an earlier step's fault shows at whatever is called next."""
        try:
            torch.cuda.synchronize(self.torch_device)
        except RuntimeError as error:
            raise _end_of(error) from error


class _OnItsWay:
    """A copy of joined tensors to the host and the event after it."""

    has_ended = False

    def __init__(self, host: Tensor, tensors: Sequence[Tensor], done: torch.cuda.Event):
        self._host = host
        self._tensors = tensors
        self._done = done

    def wait(self) -> list[Tensor]:
        try:
            self._done.synchronize()
        except RuntimeError as error:
            raise _end_of(error) from error
        return split(self._host, self._tensors)


def _end_of(error: RuntimeError) -> SystemExit:
    """CUDA works no more in this process. Its end is noticed, and a successor goes on with the requests."""
    return SystemExit(f"the GPU has failed: {error}")
