"""torch.profiler as a profile's observer: every operator of a step, on the CPU and on a GPU, under the step's name."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from messages.profiling import Sample


class TorchObserver:
    """Observes the thread that calls `start`, and all of the GPU's work; `stop` belongs to the same thread."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        # Without acc_events, `stop` makes no Python object of each event: that takes ten times as long as the rest.
        self._profile = profile(activities=activities, acc_events=False)

    def start(self) -> None:
        self._profile.start()

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        return record_function(name)

    def stop(self) -> None:
        self._profile.stop()

    def samples(self) -> tuple[int, list[Sample]]:
        return 0, []

    def write_trace(self, path: Path) -> bool:
        self._profile.export_chrome_trace(str(path))
        return True
