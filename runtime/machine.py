"""Properties of this machine as Linux reports them: available memory and native bfloat16."""

import os
from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
AVX512_FLAG, TILES_FLAG = "avx512_bf16", "amx_bf16"
BFLOAT16_CPU_FLAGS = frozenset({AVX512_FLAG, TILES_FLAG})


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
