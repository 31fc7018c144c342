"""The snapshots of a run: when they are taken, where they are stored, and how many are kept."""

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from messages.control.admin import Answer, Done, Failed, TakeSnapshot
from messages.errors import BootError
from runtime.own_directory import is_own_directory
from runtime.run_dir import RunDir
from supervisor.admin.snapshot import MANIFEST, Snapshot
from supervisor.admin.tasks import CommandFailedError, OpenCommand, Task
from supervisor.console import Console
from supervisor.process_group import ProcessGroup

SAME_CAUSE_S = 60.0
"""No second snapshot of the same trouble in the same process is taken within this time."""

NAME_PATTERN = re.compile(r"\d{8}-\d{6}-\d+-")
"""How the name of a snapshot begins, so that nothing else is ever deleted: time and port."""


class Snapshots:
    """Takes snapshots of trouble and on command, without blocking the launcher's loop."""

    def __init__(self, run_dir: RunDir, group: ProcessGroup, console: Console):
        self._config = run_dir.read_config()
        self._run_dir = run_dir
        self._group = group
        self._console = console
        self._root = Path(self._config.run.snapshot_dir or default_root())
        self._open: list[OpenCommand] = []
        self._taken_s: dict[tuple[str, str], float] = {}

    def take(self, cause: str, process: str, text: str, then: Callable[[], None] | None = None) -> Path | None:
        """Begins a snapshot of trouble with `process`, and returns its path; `None` if none is wanted.

        State that will soon be lost is recorded at once. `then` is called when the process is no longer needed.
        """
        now_s = time.monotonic()
        is_repeated = now_s - self._taken_s.get((cause, process), float("-inf")) < SAME_CAUSE_S
        then = then or _do_nothing
        if not self._config.run.max_snapshots or is_repeated:
            then()
            return None
        self._taken_s[cause, process] = now_s
        why = {"cause": cause, "process": process, "text": text}
        path = self._new_path(f"{cause}-{process}")
        command = OpenCommand(0, self._write(path, why, then), self._report_failure)
        if command.resume():
            self._open.append(command)
        return path

    def take_on_command(self, command: TakeSnapshot) -> Task:
        """Returns `Done` with the directory."""
        path = Path(command.directory) if command.directory else self._new_path("command")
        return self._write(path, {"cause": "command", "process": "", "text": "it was asked for"}, _do_nothing)

    def follow(self) -> None:
        """Continues the open snapshots; call it in each turn."""
        self._open = [command for command in self._open if command.resume()]

    def due_in_s(self) -> float:
        """Returns when an open snapshot must be continued."""
        return max(0.0, min((command.due_s for command in self._open), default=float("inf")) - time.monotonic())

    def close(self) -> None:
        """Ends the open snapshots with the data that they have."""
        for command in self._open:
            command.close()

    def _write(self, path: Path, why: dict[str, Any], then: Callable[[], None]) -> Task:
        has_continued = False

        def continue_after() -> None:
            nonlocal has_continued
            if not has_continued:
                has_continued = True
                then()

        try:
            snapshot = Snapshot(path, why, self._run_dir, self._group)
            yield from snapshot.collect(continue_after)
            self._delete_old()
        except FileExistsError:
            raise CommandFailedError("impossible", f"{path} exists already; a snapshot is a new directory") from None
        except (OSError, BootError) as error:  # the disk, or a run directory without its configuration
            raise CommandFailedError("failed", f"the snapshot {path} is not whole: {error}") from None
        finally:
            continue_after()
        return Done(str(path))

    def _new_path(self, ending: str) -> Path:
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{self._config.http.port}-{ending}"
        paths = (self._root / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
        return next(path for path in paths if not os.path.lexists(path))

    def _delete_old(self) -> None:
        """Keeps only the latest snapshots in the directory, from any server of this user."""
        found = (path.parent for path in self._root.glob(f"*/{MANIFEST}") if NAME_PATTERN.match(path.parent.name))
        own = sorted(filter(is_own_directory, found))
        for directory in own[: -max(1, self._config.run.max_snapshots)]:
            shutil.rmtree(directory, ignore_errors=True)

    def _report_failure(self, answer: Answer) -> None:
        if isinstance(answer.result, Failed):
            self._console.show(answer.result.message, "error")


def default_root() -> Path:
    """Returns the directory of the user's snapshots."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sluice" / "snapshots"


def _do_nothing() -> None:
    pass
