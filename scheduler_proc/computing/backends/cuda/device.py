"""A GPU: pinned memory, work in order, results fetched concurrently, captured graphs, free memory.

All CUDA calls of the computing half except tensor operations are here, so everything else runs without a GPU: tests
have a device that does the same on a CPU, as late as possible.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from messages.errors import BootError
from scheduler_proc.computing.device import Fetched
from scheduler_proc.computing.sampling.results import Result
from scheduler_proc.computing.step.packed_columns import join, split

MAX_REASON_CHARS = 300

Work = Callable[[], None]

Pool = Any
"""A handle of a memory pool; only its device understands it."""


class CudaDevice:
    """A CUDA device. Work goes to the current stream.

    A step's columns are sent on a stream of their own, during the previous step; its result is fetched on another,
    during the next step.
    """

    has_own_processor = True
    max_logits = 1 << 25

    def __init__(self, torch_device: torch.device):
        self.torch_device = torch_device
        self._capture: _PiecewiseCapture | None = None
        self._sending = torch.cuda.Stream(torch_device)
        self._fetching = torch.cuda.Stream(torch_device)

    def allocate_host(self, num_bytes: int) -> Tensor:
        # Torch caches dropped pinned memory, and reuses it once the copies from and to it are done.
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
        """No-op: the memory of the whole cache is allocated at load."""

    def new_pool(self) -> Pool:
        """Returns a pool for graphs that never run concurrently; its memory is freed with the last of them."""
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Work, pool: Pool) -> Work:
        """Returns a function that repeats the work on the same tensors in one launch. It has been done once before.

        Raises `BootError` if that fails: torch's allocator then still takes this thread's memory from the pool of the
        graph, and never gives it back.
        """
        failure: Exception | None = None
        context = torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool)
        self._capture = pieces = _PiecewiseCapture(context)
        try:
            # A failed capture may leave its stream as the current one: the outer context restores it.
            with torch.cuda.stream(torch.cuda.current_stream(self.torch_device)), context:
                try:
                    work()
                except Exception as error:
                    failure = error
                    raise
        except Exception as error:
            # If the work has failed, the end of the capture fails too, without the reason.
            cause = failure or error
            raise capture_failure(cause) from cause
        finally:
            self._capture = None
        return pieces.replay

    @property
    def is_capturing(self) -> bool:
        return self._capture is not None

    def on_host(self, work: Work) -> None:
        """Makes the host do the work at this place of a step, after all launches before it: now, or in each replay."""
        if self._capture is None:
            work()
        else:
            self._capture.interrupt(work)

    def new_event(self) -> "HostEvent":
        return torch.cuda.Event()

    def copy_out(self, tensor: Tensor, host: Tensor) -> None:
        """Launches a copy to pinned memory; an event recorded later shows its end."""
        host.copy_(tensor, non_blocking=True)

    def copy_in(self, host: Tensor) -> Tensor:
        """Returns a copy of pinned memory for the work launched next; the memory is read until that work begins."""
        return host.to(self.torch_device, non_blocking=True)

    def memory(self) -> tuple[int, int]:
        """Returns the free and the total bytes, once all launched work is done."""
        torch.cuda.synchronize(self.torch_device)
        return torch.cuda.mem_get_info(self.torch_device)

    def release_unused(self) -> None:
        """Frees cached memory that is not in use."""
        torch.cuda.empty_cache()

    def _end_if_failed(self) -> None:
        """Ends the process if CUDA itself has failed: an earlier step's fault surfaces in a later call."""
        try:
            torch.cuda.synchronize(self.torch_device)
        except RuntimeError as error:
            raise _end_of(error) from error


class HostEvent(Protocol):
    """A place in the work of a device."""

    def record(self) -> None:
        """The place is behind everything launched so far."""

    def synchronize(self) -> None:
        """Waits until the device has come to the place that was recorded last."""


class _PiecewiseCapture:
    """Graphs in one pool, captured in `context` one after another, with work of the host in between."""

    def __init__(self, context: torch.cuda.graph):
        self._context = context
        self._before: list[Work] = []

    def interrupt(self, work: Work) -> None:
        """Ends a graph, and begins the next one, before whose launch the host does the work."""
        context = self._context
        context.cuda_graph.capture_end()
        self._before += [context.cuda_graph.replay, work]
        context.cuda_graph = torch.cuda.CUDAGraph()
        context.cuda_graph.capture_begin(*context.pool, capture_error_mode=context.capture_error_mode)

    def replay(self) -> None:
        for do in self._before:
            do()
        self._context.cuda_graph.replay()


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


def capture_failure(error: Exception) -> BootError:
    return BootError(
        f"CUDA graphs cannot be captured: {reason_of(error).rstrip('.')}. Start with --enforce-eager, which captures "
        "none and is slower; where memory is short, lower --gpu-memory-utilization or --max-num-seqs"
    )


def reason_of(error: Exception) -> str:
    """Returns one line: CUDA's first line, or Triton's last one, which follows the source of a kernel."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RuntimeError) and lines:
        return lines[0][:MAX_REASON_CHARS]
    return ": ".join([type(error).__name__, *lines[-1:]])[:MAX_REASON_CHARS]


def _end_of(error: RuntimeError) -> SystemExit:
    """CUDA cannot be used in this process any more. It ends, and its successor continues the requests."""
    return SystemExit(f"the GPU has failed: {error}")
