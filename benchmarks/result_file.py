"""How a benchmark's result is kept: what was measured, by which command, on what machine, at which commit."""

import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CPU_INFO = Path("/proc/cpuinfo")
VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""What the flags of /proc/cpuinfo are called, the widest first."""


def write_result(path: Path, name: str, results: object) -> None:
    """Writes `results` (plain values, dataclasses, structs) as JSON, with everything needed to measure it again."""
    document = {
        "name": name,
        "command": shlex.join(command()),
        "commit": commit(),
        "when": now(),
        "machine": machine(),
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False, default=_plain)
    # In one step: whoever is stopped meanwhile leaves the last file whole.
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(f"{text}\n", encoding="utf-8")
    unfinished.replace(path)


def now() -> str:
    """Returns the time of day in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    """Returns what a dataclass or a msgspec struct holds; machines with a GPU may lack msgspec itself."""
    if isinstance(value, Path):
        return str(value)
    names = getattr(value, "__struct_fields__", None) or [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}


def machine() -> dict[str, str | int | float]:
    """Returns the CPU model, its vectors and cores, the load of the last minute, the system and Python's version.

    Virtual machines give processors of several generations the same name.
    """
    return {
        "cpu": _cpu_fact("model name") or platform.processor() or platform.machine(),
        "vectors": _widest_vectors(_cpu_fact("flags").split()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "load_1min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def command() -> list[str]:
    """Returns the command line of this process, without the path of the interpreter."""
    return ["python", *sys.orig_argv[1:]]


def commit() -> str:
    """Returns the commit of the checkout, with `-dirty` where files other than results differ from it.

    Outside of git it is what SLUICE_COMMIT says, or "unknown".
    """
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("SLUICE_COMMIT") or "unknown"
    return head + ("-dirty" if _git("status", "--porcelain", "--", ".", ":!benchmarks/results") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_fact(name: str) -> str:
    """Returns what /proc/cpuinfo says of the first processor, or "" where it says nothing."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def _widest_vectors(flags: Sequence[str]) -> str:
    return next((about for flag, about in VECTORS.items() if flag in flags), "")
