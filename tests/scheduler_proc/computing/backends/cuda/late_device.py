"""A GPU's stand-in on the CPU, as late as possible: work is done when its result is requested."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Lock

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from messages.config.server import CacheConfig, Config, ModelConfig
from scheduler_proc.computing import load_runner
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.backends.cuda import loading
from scheduler_proc.computing.backends.cuda.backend import CudaBackend
from scheduler_proc.computing.backends.cuda.device import CudaDevice, Pool, Work, capture_failure
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.parallel import Meeting, ParallelGroup
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.sampling.logprobs import MAX_LOGITS
from scheduler_proc.computing.sampling.results import Result

GARBAGE = 0x5A
WAITS = ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")
"""What a program can only know of a tensor by waiting for its device."""


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Reading a tensor's values fails."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("the host would wait for the device here")

    with pytest.MonkeyPatch.context() as patch:
        for name in WAITS:
            patch.setattr(Tensor, name, refuse)
        yield


class LateEvent:
    """A place in the work of a `LateDevice`."""

    def __init__(self, device: "LateDevice"):
        self._device = device
        self._copies: list[tuple[Tensor, Tensor]] = []

    def record(self) -> None:
        self._copies = self._device.take_copies()

    def synchronize(self) -> None:
        """Until now copies to the host had not begun, and copies from there could still read its memory."""
        self._device.check_read()
        for tensor, host in self._copies:
            host.copy_(tensor)
        self._copies = []


class LateDevice(CudaDevice):
    """Does submitted work in order, as late as possible: when its result, or a later one, is requested.

    Copies to the host are done when an event behind them is waited for; those from the host may read until then.

    A "graph" repeats the captured work; after `num_captures` captures, the next fails by `capture_error`. Buffers hold
    garbage. Any thread may wait. Without `may_wait`, work must not read the values of tensors.
    """

    has_own_processor = False
    max_logits = MAX_LOGITS
    capture_error: Exception = torch.OutOfMemoryError("CUDA out of memory.\nmore")

    def __init__(
        self, total_bytes: int = 1 << 30, used_bytes: int = 0, num_captures: int = 1_000, may_wait: bool = True
    ):
        self.torch_device = torch.device("cpu")
        self.num_done = 0
        self.num_replays = 0
        self.max_waiting = 0
        self._total_bytes, self._used_bytes = total_bytes, used_bytes
        self._num_captures = num_captures
        self._around = nullcontext if may_wait else waiting_refused
        self._work: deque[_LateWork] = deque()
        self._is_working = Lock()
        self._capture = None
        self._copies_out: list[tuple[Tensor, Tensor]] = []
        self._copies_in: list[tuple[Tensor, Tensor]] = []

    def allocate_host(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)

    def send(self, host: Tensor) -> Tensor:
        return host.clone()

    def submit(self, work: Callable[[], Result]) -> "_LateWork":
        late = _LateWork(self, work)
        self._work.append(late)
        self.max_waiting = max(self.max_waiting, len(self._work))
        return late

    def will_write(self, pages: Sequence[int]) -> None:
        pass

    def new_pool(self) -> Pool:
        return (0, 1)

    def capture(self, work: Work, pool: Pool) -> Work:
        assert pool == (0, 1)
        if self._num_captures == 0:
            raise capture_failure(self.capture_error)
        self._num_captures -= 1

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay

    def new_event(self) -> LateEvent:
        return LateEvent(self)

    def copy_out(self, tensor: Tensor, host: Tensor) -> None:
        host.view(torch.uint8).fill_(GARBAGE)
        self._copies_out.append((tensor.clone(), host))

    def copy_in(self, host: Tensor) -> Tensor:
        copy = host.clone()
        self._copies_in.append((host, copy))
        return copy.clone()

    def take_copies(self) -> list[tuple[Tensor, Tensor]]:
        """Returns the copies to the host that were launched since the last call."""
        copies, self._copies_out = self._copies_out, []
        return copies

    def check_read(self) -> None:
        """All copies from the host have been done; fails if their memory has changed since they were launched."""
        for host, copy in self._copies_in:
            assert torch.equal(host.view(torch.uint8), copy.view(torch.uint8)), "memory was written while it was copied"
        self._copies_in.clear()

    def memory(self) -> tuple[int, int]:
        self.do_until(None)
        return self._total_bytes - self._used_bytes, self._total_bytes

    def release_unused(self) -> None:
        pass

    def do_until(self, last: "_LateWork | None") -> None:
        """Does all work up to `last`, or all there is."""
        with self._is_working:
            while self._work and (last is None or last.result is None):
                late = self._work.popleft()
                with self._around():
                    tensors = late.work()
                    assert not isinstance(tensors, np.ndarray)
                    late.result = [tensor.clone() for tensor in tensors]
                self.num_done += 1


class _LateWork:
    has_ended = False

    def __init__(self, device: LateDevice, work: Callable[[], Result]):
        self._device = device
        self.work = work
        self.result: Sequence[Tensor] | None = None

    def wait(self) -> Sequence[Tensor]:
        self._device.do_until(self)
        assert self.result is not None
        return self.result


class LateBackend(CudaBackend):
    """The backend of GPUs with devices on the CPU that stand in for them."""

    def __init__(self, make_device: Callable[[], CudaDevice]):
        self._make_device = make_device

    def find_placement(self, model: ModelConfig, cache: CacheConfig, hf_config: HfConfig, number: int = 1) -> Placement:
        """Returns a CPU's. fp8 weights are on the device; with experts on the host, other formats are theirs."""
        asked, is_hosts = model.quantization, model.cpu_experts != "none"
        flags = replace(model, cpu_experts="none", quantization="none" if is_hosts or asked == "fp8" else asked)
        placement = CpuBackend().find_placement(flags, cache, hf_config, number)
        if asked == "fp8":
            return dataclasses.replace(placement, quantization=asked)
        return dataclasses.replace(placement, host_quantization=asked if is_hosts and asked != "none" else None)

    def join_ranks(self, meeting: Meeting, name: str, rank: int, size: int) -> ParallelGroup:
        return CpuBackend().join_ranks(meeting, name, rank, size)

    def free_bytes(self, config: Config, placement: Placement) -> int:
        free_bytes, total_bytes = self._make_device().memory()
        return int(total_bytes * config.cache.gpu_memory_utilization) - (total_bytes - free_bytes)

    def open_device(self, placement: Placement) -> CudaDevice:
        return self._make_device()


def no_triton(device_type: str) -> None:
    """Stands in for `load_triton_kernels`: the operations keep the kernels that they have on a CPU."""


@contextmanager
def late_backend(
    make_device: Callable[[], CudaDevice], load_triton_kernels: Callable[[str], None] = no_triton
) -> Iterator[None]:
    """Models are loaded as on a GPU, which is the device that `make_device` returns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_triton_kernels", load_triton_kernels)
        patch.setattr(load_runner, "find_backend", lambda model: LateBackend(make_device))
        yield
