"""The commands of `launch.py`: which there are, and those that are programs of their own."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from messages.program import PROGRAM
from runtime.extras import installed_extras
from runtime.lifeline import ask_for_death_signal
from supervisor.python_process import ROOT, python_command, python_path

OPERATOR_COMMANDS = ("ps", "logs", "drain", "restart", "scale", "snapshot", "log-level", "profile")
"""The core's commands for a running server (`supervisor/cli/operate.py`)."""


def find_programs() -> dict[str, str]:
    """Returns the module of each command that needs no running server and is a program of its own."""
    return {name: module for extra in installed_extras() for name, module in extra.programs.items()}


def command_names() -> tuple[list[str], list[str]]:
    """Returns the commands for a running server, then the others."""
    added = [entry for extra in installed_extras() for entry in extra.commands.items()]
    with_server = [*OPERATOR_COMMANDS, *(name for name, command in added if command.needs_server)]
    return with_server, [*(name for name, command in added if not command.needs_server), *find_programs()]


def program_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a program; its help shows `description` as it is written."""
    return argparse.ArgumentParser(
        prog=f"{PROGRAM} {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def start_launcher(arguments: Sequence[str], *, stdout: Any = None, stderr: Any = None) -> "subprocess.Popen[bytes]":
    """Starts another `launch.py`, in a process group of its own. It dies with this process."""
    own_pid = os.getpid()
    return subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), *arguments],
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=lambda: ask_for_death_signal(own_pid),  # noqa: PLW1509 (one prctl call)
        stdout=stdout,
        stderr=stderr,
    )


def run_program(module: str, arguments: Sequence[str]) -> NoReturn:
    """Becomes the program `module`."""
    command = (*python_command(module), *arguments)
    os.execve(command[0], command, {**os.environ, "PYTHONPATH": python_path()})
