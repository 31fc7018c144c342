"""The system's information about a process from outside, even about one that is stopped or hangs."""

import contextlib
from pathlib import Path
from typing import Literal

PROC_FILES = ("status", "maps", "limits")

STOPPED, TRACED = "T", "t"

RunState = Literal["runs", "stopped", "traced"]
"""`stopped`: by a signal; `traced`: a debugger holds it."""


def run_state_of(pid: int) -> RunState:
    """Returns whether process `pid` has been stopped by a signal or a debugger; `runs` if its state cannot be read."""
    with contextlib.suppress(OSError):
        state = _state_of(Path(f"/proc/{pid}"))
        return "stopped" if state == STOPPED else "traced" if state == TRACED else "runs"
    return "runs"


def copy_proc_files(pid: int, directory: Path) -> None:
    """Copies what /proc has of a process; of each of its threads a line: id, state, where in the kernel, name.

    Nothing is written of a process that is gone.
    """
    proc = Path(f"/proc/{pid}")
    threads: list[str] = []
    with contextlib.suppress(OSError):
        for task in sorted(proc.glob("task/*"), key=lambda task: int(task.name)):
            where, name = ((task / file).read_text(errors="replace").strip() for file in ("wchan", "comm"))
            threads.append(f"{task.name} {_state_of(task)} {where} {name}\n")
    for file in PROC_FILES:
        with contextlib.suppress(OSError):
            (directory / file).write_bytes((proc / file).read_bytes())
    if threads:
        (directory / "threads").write_text("".join(threads), encoding="utf-8")


def _state_of(task: Path) -> str:
    return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
