"""Runs a module of this program in a process of its own. It imports nothing of ours, and nothing large."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_command(module: str) -> tuple[str, ...]:
    """Returns the command that runs a module of this program; its environment needs `python_path`."""
    return (sys.executable, "-P", "-m", module)


def python_path() -> str:
    """Returns a PYTHONPATH under which the packages of this program are found from any directory."""
    inherited = os.environ.get("PYTHONPATH", "")
    return f"{ROOT}{os.pathsep}{inherited}" if inherited else str(ROOT)


def python_environment() -> dict[str, str]:
    """Returns the environment of the run's processes: what they write is seen at once."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": python_path()}
