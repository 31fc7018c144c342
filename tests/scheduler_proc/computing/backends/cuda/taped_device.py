"""A stand-in for a GPU whose graphs repeat operations on the memory that they were captured with, as CUDA graphs do."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.cpu.capture import NEW_MEMORY
from kernels.cpu.library import Kernel, Run, observed_kernels
from scheduler_proc.computing.backends.cuda.device import CudaDevice, Pool, Work
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice

WAITING = {"_local_scalar_dense", "nonzero"}


class TapedGraph:
    """Operations and calls of C kernels between `capture_begin` and `capture_end`, repeated by `replay`."""

    current: "TapedGraph | None" = None

    def __init__(self) -> None:
        self.entries: list[Callable[[], object]] = []
        self.kept: list[Tensor] = []
        self._recording = ExitStack()

    def capture_begin(self, pool: Pool = None, capture_error_mode: str = "global") -> None:
        assert TapedGraph.current is None
        TapedGraph.current = self
        self._recording.enter_context(observed_kernels(self._observe))
        self._recording.enter_context(_Recorder(self))

    def capture_end(self) -> None:
        assert TapedGraph.current is self
        self._recording.close()
        TapedGraph.current = None

    def replay(self) -> None:
        assert self.entries, "an empty graph"
        for entry in self.entries:
            entry()

    def _observe(self, kernel: Kernel) -> Run:
        def run(arguments: Any) -> None:
            self.entries.append(partial(kernel.run, arguments))
            kernel.run(arguments)

        return run


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: TapedGraph):
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        assert name not in WAITING, f"{name} waits for the device"
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._graph.kept += outputs
        if name not in NEW_MEMORY:
            self._graph.entries.append(partial(_repeat, outputs, func, args, kwargs))
        return result


def _repeat(outputs: list[Tensor], func: Any, args: Any, kwargs: Any) -> None:
    results = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
    for output, result in zip(outputs, results, strict=True):
        if output.data_ptr() != result.data_ptr():
            output.copy_(result)


class _GraphContext:
    """As `torch.cuda.graph`."""

    capture_error_mode = "global"

    def __init__(self, cuda_graph: TapedGraph, pool: Pool):
        self.cuda_graph, self.pool = cuda_graph, (pool,)

    def __enter__(self) -> None:
        self.cuda_graph.capture_begin(*self.pool)

    def __exit__(self, *_: object) -> None:
        self.cuda_graph.capture_end()


class TapedDevice(LateDevice):
    """Copies in a captured step are parts of its graphs. `num_works`: how often the host acted between graphs."""

    num_works = 0

    def capture(self, work: Work, pool: Pool) -> Work:
        replay = CudaDevice.capture(self, work, pool)

        def counted() -> None:
            self.num_replays += 1
            replay()

        return counted

    def on_host(self, work: Work) -> None:
        def counted() -> None:
            self.num_works += 1
            work()

        super().on_host(counted)

    def copy_out(self, tensor: Tensor, host: Tensor) -> None:
        self._launch(partial(super().copy_out, tensor, host))

    def copy_in(self, host: Tensor) -> Tensor:
        copy, copy_now = torch.zeros_like(host), super().copy_in
        self._launch(lambda: copy.copy_(copy_now(host)))
        return copy

    def _launch(self, work: Callable[[], object]) -> None:
        if TapedGraph.current is None:
            work()
        else:
            TapedGraph.current.entries.append(work)


@contextmanager
def taped_graphs() -> Iterator[None]:
    """Makes `CudaDevice.capture` record `TapedGraph`s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", TapedGraph)
        patch.setattr(torch.cuda, "graph", _GraphContext)
        patch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        patch.setattr(torch.cuda, "current_stream", lambda _: None)
        yield
