"""Properties of this machine as Linux reports them: available memory and native bfloat16."""

import os
from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
TILES_FLAG = "amx_bf16"
BFLOAT16_CPU_FLAGS = frozenset({"avx512_bf16", TILES_FLAG})


def available_memory_bytes(memory_info: Path, cgroup: Path) -> int:
    """Returns the available memory, by the kernel's estimate and the container's limit.

    Cached files count towards the limit, but are dropped when memory is needed, at least those not used lately.
    """
    try:
        fields = dict(line.split(":", 1) for line in memory_info.read_text(encoding="ascii").splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        details = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return available
    return max(0, min(available, limit - used + int(details.get("inactive_file", 0))))


def computes_bfloat16(cpu_info: Path, by: frozenset[str] = BFLOAT16_CPU_FLAGS) -> bool:
    """True if the processor multiplies bfloat16 natively; False if /proc/cpuinfo cannot be read.

    `by`: the flags of what multiplies it. Without tiles (`TILES_FLAG`) it is read faster than float32, but not
    multiplied faster.
    """
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return not by.isdisjoint(flags.split())
