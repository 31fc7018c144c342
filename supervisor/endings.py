"""Describes to the operator how a process has ended."""

import time
from collections.abc import Iterable

from supervisor.child import Child


def describe_exit(child: Child, was_starting: bool) -> str:
    """Returns one line about the end of a process: its start failed, or it died."""
    if was_starting:
        return f"cannot start: {child.boot_error or f'it {child.ending}'}"
    return f"died: it {child.ending} after {time.monotonic() - child.started_s:.1f} s"


def describe_fatal_exit(child: Child, was_starting: bool) -> str:
    """Returns the same for an end that also ends the run, with the last output of the process."""
    is_explained = was_starting and child.boot_error
    return f"{child.name} {describe_exit(child, was_starting)}{'' if is_explained else quote(child.last_lines)}"


def quote(lines: Iterable[str]) -> str:
    """Returns the lines as a quotation that follows a sentence; empty if there are none."""
    text = "\n".join(f"  | {line}" for line in lines)
    return f"\nits last lines:\n{text}" if text else ""
