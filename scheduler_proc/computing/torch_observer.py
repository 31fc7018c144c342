"""The scheduler's observer: records each operator of torch, on the CPU and on a GPU, and each C kernel."""

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kernels.cpu.capture import timed_kernels
from runtime.profiling import MAX_NOTES, Observer, Slice
from scheduler_proc.computing.torch_import import import_fake_tensors


class TorchObserver(Observer):
    """Observes the thread that calls `start`, and all GPU work; `stop` must be called in the same thread."""

    def __init__(self) -> None:
        import_fake_tensors()
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        # With acc_events, `stop` would make a Python object of each event, which takes ten times as long as the rest.
        self._profile = profile(activities=activities, acc_events=False)
        self._timing = ExitStack()
        self._kernels: list[Slice] = []

    def start(self) -> None:
        self._profile.start()
        self._timing.enter_context(timed_kernels(self._record))

    def _record(self, name: str, began_ns: int, ended_ns: int) -> None:
        if len(self._kernels) < MAX_NOTES:
            self._kernels.append((name, began_ns, ended_ns))

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        return record_function(name)

    def stop(self) -> None:
        self._timing.close()
        self._profile.stop()

    def slices(self) -> list[Slice]:
        return self._kernels

    def write_trace(self, path: Path) -> bool:
        self._profile.export_chrome_trace(str(path))
        return True
