"""How much CPU and memory processes take, as the kernel counts it."""

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

MIN_SPAN_S = 0.2
"""The kernel counts CPU time in hundredths of a second, so a shorter span shows little."""


class UsageMeter:
    """Measures from its creation on; values are unknown for processes that end meanwhile."""

    def __init__(self, pids: list[int]):
        self._began_s = time.monotonic()
        self._cpu_s = {pid: cpu_s for pid in pids if (cpu_s := _cpu_s(pid)) is not None}

    def cpu_percent(self, pid: int) -> float | None:
        """Returns the share of one core that process `pid` took since the beginning, in percent."""
        before_s, now_s = self._cpu_s.get(pid), _cpu_s(pid)
        if before_s is None or now_s is None:
            return None
        return round(100 * max(0.0, now_s - before_s) / max(1e-3, time.monotonic() - self._began_s), 1)

    def rss_bytes(self, pid: int) -> int | None:
        """Returns the memory that process `pid` has in RAM, shared pages included."""
        with suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss
        return None


def memory_bytes(pids: Iterable[int]) -> int:
    """Returns the memory of these processes and all their descendants together (PSS): what they share counts once, the
    files in memory as well. What they share with other processes counts in proportion.
    """
    processes: set[psutil.Process] = set()
    for pid in pids:
        with suppress(psutil.Error):
            if (process := psutil.Process(pid)) not in processes:  # the search looks at all processes of the machine
                processes |= {process, *process.children(recursive=True)}
    num_bytes = 0
    for process in processes:
        with suppress(psutil.Error):
            num_bytes += process.memory_full_info().pss
    return num_bytes


def _cpu_s(pid: int) -> float | None:
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return None
