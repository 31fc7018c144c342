"""Divides the NUMA nodes of a machine among the processes that compute (decision 0074).

Memory is allocated on the node of the thread that first writes it, unless the operator chose another policy (numactl).
"""

import contextlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SYSFS = Path("/sys/devices/system/node")


class Share(NamedTuple):
    """The cores of a process: group number `group` of the `num_groups` into which the nodes are divided."""

    group: int
    num_groups: int
    cpus: frozenset[int]

    def count(self, num_processes: int) -> int:
        """Returns how many of `num_processes` processes use these cores."""
        return len(range(self.group, num_processes, self.num_groups))


@cache
def allowed_cpus() -> frozenset[int]:
    """Returns the cores that this process was started with, before any pinning."""
    return frozenset(os.sched_getaffinity(0))


def read_nodes(allowed: frozenset[int], sysfs: Path = SYSFS) -> list[frozenset[int]]:
    """Returns the allowed cores of each node that has any, in order. Without NUMA, there is one group of all cores."""
    names = sorted((path.name for path in sysfs.glob("node[0-9]*")), key=lambda name: int(name[4:]))
    nodes = [cores for name in names if (cores := allowed & _read_list(sysfs / name / "cpulist"))]
    return nodes if len(nodes) > 1 else [allowed]


def divide(nodes: Sequence[frozenset[int]], num_processes: int, number: int) -> Share:
    """Returns the cores of process `number` (counted from 1) of `num_processes`, which may grow later.

    Processes are assigned to the nodes in turn. If there are fewer processes than nodes, each gets adjacent nodes.
    """
    num_groups = min(num_processes, len(nodes))
    group = (number - 1) % num_groups
    own = nodes[group * len(nodes) // num_groups : (group + 1) * len(nodes) // num_groups]
    return Share(group, num_groups, frozenset[int]().union(*own))


def pin(share: Share) -> None:
    """Pins all threads of this process, and the threads that they start, to these cores."""
    if share.num_groups > 1:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), share.cpus)


def file_of_group(path: Path, group: int) -> Path:
    """Returns the file that the processes of a group share instead of `path`."""
    return path.with_name(f"{path.name}-{group}") if group else path


def _read_list(file: Path) -> frozenset[int]:
    """Reads `0-3,8-11`; empty for a node that has memory only, or is gone."""
    try:
        spans = [part.split("-") for part in file.read_text(encoding="ascii").strip().split(",") if part]
    except OSError:
        return frozenset()
    return frozenset(core for span in spans for core in range(int(span[0]), int(span[-1]) + 1))
