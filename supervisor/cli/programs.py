"""Commands that need no running server here: programs of their own, of which the launcher imports nothing."""

import os
from collections.abc import Sequence
from typing import NoReturn

from supervisor.python_process import python_command, python_path

PROGRAMS = {"join": "extras.remote.join", "calibrate": "extras.whatif.calibrate", "whatif": "extras.whatif"}
"""The module of each command."""


def run_program(arguments: Sequence[str]) -> NoReturn:
    """Becomes the program of the command `arguments[0]`."""
    command = (*python_command(PROGRAMS[arguments[0]]), *arguments[1:])
    os.execve(command[0], command, {**os.environ, "PYTHONPATH": python_path()})
