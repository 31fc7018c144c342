"""Starts a scheduler process before its launcher knows the configuration of the run."""

import json
import os
import signal
import sys

from runtime.lifeline import ask_for_death_signal
from scheduler_proc.computing.torch_import import import_torch


def await_command_line(launcher_pid: int) -> str:
    """Imports torch, then reads the command line of this process from standard input. Returns the module to run.

    Raises `SystemExit` if the launcher ends without sending one.
    """
    ask_for_death_signal(launcher_pid, signal.SIGKILL)  # SIGKILL ends a stopped process, too
    import_torch()
    # Imported late: it needs torch.
    import scheduler_proc.computing.load_runner  # noqa: F401  # pyright: ignore[reportUnusedImport]

    text = sys.stdin.read()
    if not text:
        raise SystemExit
    module, *sys.argv[1:] = json.loads(text)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return module
