"""How long a step takes: waited for, launched, back to back on the GPU, and kernel by kernel."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from messages.ring.steps import Batch
from scheduler_proc.computing.runner import Runner

PROFILED_STEPS = 3
MAX_NAME_CHARS = 120


@dataclass(frozen=True)
class KernelTime:
    """A kernel, or copy, of a step: how often it runs in one, and the microseconds of all its runs in one."""

    name: str
    count: float
    us: float


def waited_ms(runner: Runner, batch: Batch, num_steps: int) -> float:
    """Returns the median time of a step from its launch until the host has its tokens."""
    return _median_ms(lambda: runner.run(batch), num_steps, lambda _: None)


def launch_ms(runner: Runner, batch: Batch, num_steps: int) -> float:
    """Returns the median time until a launch returns while nothing else is queued: the host's part of a step.

    A CPU computes the step meanwhile, so that there it is nearly all of it.
    """
    return _median_ms(lambda: runner.launch(batch), num_steps, lambda step: step.result())


def back_to_back_ms(runner: Runner, batch: Batch, num_steps: int) -> float:
    """Returns the GPU's time of a step where the next one is always queued already, by its own clock.

    If the host takes longer to launch a step than the GPU to run it, it is the host's time.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    launched = [runner.launch(batch) for _ in range(num_steps)]
    end.record()
    for step in launched:
        step.result()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / num_steps


def profile_kernels(run: Callable[[], object]) -> list[KernelTime]:
    """Returns what runs on the GPU in one call of `run`, the longest first; torch's profiler (Kineto) records it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(PROFILED_STEPS):
            run()
        torch.cuda.synchronize()
    return tabulate(recorded.key_averages(), PROFILED_STEPS)


def tabulate(events: Iterable[Any], num_steps: int) -> list[KernelTime]:
    """Returns the profiler's averages that have time of a device, for one of `num_steps`, the longest first."""
    found = [
        KernelTime(str(event.key)[:MAX_NAME_CHARS], event.count / num_steps, event.self_device_time_total / num_steps)
        for event in events
        if event.self_device_time_total > 0
    ]
    return sorted(found, key=lambda kernel: -kernel.us)


def _median_ms(call: Callable[[], Any], num_steps: int, finish: Callable[[Any], object]) -> float:
    times: list[float] = []
    for _ in range(num_steps):
        begin_s = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - begin_s) * 1e3)
        finish(result)
    return statistics.median(times)
