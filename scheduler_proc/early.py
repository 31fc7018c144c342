"""How a process is begun that is to become a scheduler, before its launcher knows anything of the run."""

import json
import os
import signal
import sys

from runtime.lifeline import ask_for_death_signal
from scheduler_proc.computing.torch_import import import_torch


def await_command_line(launcher_pid: int) -> None:
    """Imports what takes long, and then takes the command line of this process from standard input.

    Raises `SystemExit` where the launcher ends without having sent one.
    """
    ask_for_death_signal(launcher_pid, signal.SIGKILL)  # which ends one that is stopped, too
    import_torch()
    # Imported here and not above: it needs torch.
    import scheduler_proc.computing.load_runner  # noqa: F401  # pyright: ignore[reportUnusedImport]

    text = sys.stdin.read()
    if not text:
        raise SystemExit
    sys.argv[1:] = json.loads(text)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
