"""Starts a process of an engine before its launcher knows what it will be: a scheduler at first, later any rank."""

import json
import os
import signal
import sys

from runtime.background import call_at_low_priority
from runtime.lifeline import ask_for_death_signal
from scheduler_proc.computing.torch_import import import_torch


def await_command_line(launcher_pid: int, *, is_spare: bool) -> str:
    """Imports torch, then reads the command line of this process from standard input. Returns the module to run.

    With `is_spare` the import has a low priority. Raises `SystemExit` if the launcher ends without sending one.
    """
    ask_for_death_signal(launcher_pid, signal.SIGKILL)  # SIGKILL ends a stopped process, too
    if is_spare:
        call_at_low_priority(_import_runner)
    else:
        _import_runner()
    text = sys.stdin.read()
    if not text:
        raise SystemExit
    module, *sys.argv[1:] = json.loads(text)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return module


def _import_runner() -> None:
    import_torch()
    # Imported late: it needs torch.
    import scheduler_proc.computing.load_runner  # noqa: F401  # pyright: ignore[reportUnusedImport]
