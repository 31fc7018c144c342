"""Result files: what was measured, by which command, on which machine, at which commit; and tables made of them."""

import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CPU_INFO = Path("/proc/cpuinfo")
VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Names for the flags of /proc/cpuinfo, the widest vectors first."""


def write_result(path: Path, name: str, results: object) -> None:
    """Writes `results` (plain values, dataclasses, structs) as JSON, with everything needed to measure them again.

    `FILE.json#RUN` adds the result to the runs of the file, or replaces the run of that name.
    """
    document: Result = {
        "name": name,
        "command": shlex.join(command()),
        "commit": commit(),
        "when": now(),
        "machine": machine(),
        "results": results,
    }
    file, _, run = str(path).partition("#")
    path = Path(file)
    if run:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
        document = {"runs": runs | {run: document}}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False, default=_plain)
    # Renamed into place, so that an interrupted write leaves the previous file whole.
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(f"{text}\n", encoding="utf-8")
    unfinished.replace(path)


def now() -> str:
    """Returns the current time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    """Returns the fields of a dataclass or a msgspec struct. Machines with a GPU may lack msgspec."""
    if isinstance(value, Path):
        return str(value)
    names = getattr(value, "__struct_fields__", None) or [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}


def machine() -> dict[str, str | int | float]:
    """Returns the CPU model, vectors and cores, the load of the last minute, the system and Python's version.

    Vectors tell processors apart that virtual machines give the same name.
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
    """Returns the commit of the checkout, with `-dirty` if files other than results differ from it.

    Outside of git, returns SLUICE_COMMIT, or "unknown".
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
    """Returns a field of the first processor in /proc/cpuinfo, "" if it is missing."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def _widest_vectors(flags: Sequence[str]) -> str:
    return next((about for flag, about in VECTORS.items() if flag in flags), "")


Result = dict[str, Any]


def make_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table of Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def name_source(result: Result, num_runs: int = 1) -> str:
    """Returns the line below a table of `num_runs` results: the command of the first, machine, commit and day."""
    machine = result["machine"]
    more = f" and {num_runs - 1} more like it" if num_runs > 1 else ""
    vectors = f" with {machine['vectors']}" if machine.get("vectors") else ""
    return (
        f"\n`{result['command']}`{more}: {machine['cores']} cores of {machine['cpu']}{vectors}, "
        f"Python {machine['python']}, commit {result['commit']}, {result['when'][:10]}.\n"
    )


def read_result(results: Path, name: str) -> Result:
    """Returns the result that the file `name` in a directory holds; `name#RUN` for one of several runs."""
    file, _, run = name.partition("#")
    document = json.loads((results / f"{file}.json").read_text(encoding="utf-8"))
    return document["runs"][run] if run else document


def read_runs(results: Path, name: str) -> list[Result]:
    """Returns the runs of the file `name` in a directory, `[]` if there is no such file."""
    file = results / f"{name}.json"
    return list(json.loads(file.read_text(encoding="utf-8"))["runs"].values()) if file.exists() else []
