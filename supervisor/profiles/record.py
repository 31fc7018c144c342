"""`launch.py profile`: records processes for some seconds, and merges the profiles into one file in this process."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from messages.control import admin
from supervisor.admin.tasks import CommandFailedError
from supervisor.client.admin_client import AdminClient
from supervisor.profiles.merge import write_trace

TIMEOUT_S = 60.0
"""The time for a process to begin and to end a profile; torch takes seconds for each."""

ANSWER_TIMEOUT_S = 15.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("processes", nargs="*", metavar="NAME", help="processes to profile (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="X", help="duration (default: 5)")
    parser.add_argument(
        "--out", type=Path, default=Path("trace.json"), metavar="FILE", help="output file (default: trace.json)"
    )


def take_profile(line: AdminClient, processes: Sequence[str], seconds: float, out: Path) -> str:
    """Writes the trace and returns a summary. Raises `CommandFailedError`."""
    started = sorted(_instruct(line, processes, admin.StartProfile()))
    try:
        time.sleep(seconds)
    finally:
        files = _instruct(line, started, admin.StopProfile())
    try:
        trace = write_trace([Path(file) for file in files.values()], out)
    except (OSError, TimeoutError) as error:
        raise CommandFailedError("failed", f"the profiles cannot be merged: {error}") from None
    kinds = [event["ph"] for event in trace["traceEvents"]]
    return (
        f"{out}: {', '.join(files)}; {kinds.count('X')} slices, {kinds.count('s')} arrows. "
        "Open it in https://ui.perfetto.dev or chrome://tracing"
    )


def _instruct(line: AdminClient, processes: Sequence[str], command: admin.ProcessCommand) -> dict[str, str]:
    """Returns the answers of the processes that succeeded. Raises `CommandFailedError` if none has."""
    result = line.give(admin.InstructProcesses(tuple(processes), command, TIMEOUT_S), TIMEOUT_S + ANSWER_TIMEOUT_S)
    if isinstance(result, admin.Failed):
        raise CommandFailedError(result.reason, result.message)
    assert isinstance(result, admin.ProcessResults)
    texts = {name: one.text for name, one in result.results.items() if isinstance(one, admin.Acknowledged)}
    if not texts:
        reasons = [f"{name}: {one.message}" for name, one in result.results.items() if isinstance(one, admin.Failed)]
        raise CommandFailedError("failed", "; ".join(reasons))
    return texts
