"""Properties of this machine as Linux reports them: available memory and native bfloat16."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
AVX512_FLAG, TILES_FLAG = "avx512_bf16", "amx_bf16"
BFLOAT16_CPU_FLAGS = frozenset({AVX512_FLAG, TILES_FLAG})


class GroupFiles(NamedTuple):
    """The files of a control group, and the line of `memory.stat` with the files in memory that can be dropped."""

    limit: str
    used: str
    droppable: str


UNIFIED = GroupFiles("memory.max", "memory.current", "inactive_file")
FIRST_VERSION = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory_bytes(memory_info: Path, cgroup: Path) -> int:
    """Returns the available memory, by the kernel's estimate and the limits of this process's control groups."""
    return find_memory_limit(memory_info, cgroup)[0]


def find_memory_limit(memory_info: Path, cgroup: Path, own_groups: Path = OWN_GROUPS) -> tuple[int, str]:
    """Returns the available memory, and the control group whose limit that is; for the machine's memory, no name.

    A container sees its own group as the root, at `cgroup`. Cached files count towards a limit, but are dropped when
    memory is needed, at least those not used lately.
    """
    try:
        fields = dict(line.split(":", 1) for line in memory_info.read_text(encoding="ascii").splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = [(_left_in(group, files), str(group)) for group, files in _memory_groups(cgroup, own_groups)]
    left, group = min([(available, ""), *found])
    return int(max(0, left)), group


def _left_in(group: Path, files: GroupFiles) -> float:
    """Returns the bytes that a group may still get, `inf` if it has no limit."""
    try:
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in (files.limit, files.used))
        details = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return math.inf
    return limit - used + int(details.get(files.droppable, 0))


def _memory_groups(cgroup: Path, own_groups: Path) -> Iterator[tuple[Path, GroupFiles]]:
    """Yields the groups of this process that may limit its memory, and those that contain them."""
    yield cgroup, UNIFIED
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers:
            root, files = cgroup, UNIFIED
        elif "memory" in controllers.split(","):
            root, files = cgroup / "memory", FIRST_VERSION
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            yield root.joinpath(*parts[:depth]), files


def computes_bfloat16(cpu_info: Path) -> bool:
    """True if the processor multiplies bfloat16 natively; False if /proc/cpuinfo cannot be read."""
    return not BFLOAT16_CPU_FLAGS.isdisjoint(_first_processor(cpu_info).get("flags", "").split())


def multiplies_bfloat16_faster(cpu_info: Path) -> bool:
    """True if the processor multiplies bfloat16 faster than float32, not only reads it faster.

    Tiles do. AVX-512 does on AMD's processors, which multiply float32 at half the rate of Intel's.
    """
    processor = _first_processor(cpu_info)
    flags = processor.get("flags", "").split()
    return TILES_FLAG in flags or (processor.get("vendor_id") == "AuthenticAMD" and AVX512_FLAG in flags)


def _first_processor(cpu_info: Path) -> dict[str, str]:
    try:
        text = cpu_info.read_text(encoding="utf-8")
    except OSError:
        return {}
    fields = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
