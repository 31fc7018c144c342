"""A snapshot: a directory with everything that can be recorded of a run at one moment, to be examined later."""

import contextlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from messages import VERSION
from messages.control import admin
from messages.control.processes import ProcessStatus
from runtime.run_dir import RunDir
from runtime.stacks import ask_for_stacks
from supervisor.admin.inquiries import instruct
from supervisor.admin.tasks import Steps
from supervisor.log_ring import MAX_LINES
from supervisor.manifest import library_versions
from supervisor.process_files import copy_proc_files, run_state_of
from supervisor.process_group import ProcessGroup

STACKS_S = 2.0
"""The time for a process to write its stacks; normally it takes a millisecond."""

LOOK_S = 0.02
STATE_TIMEOUT_S = 5.0
MANIFEST = "manifest.json"


class Snapshot:
    """The directory `path`, which is made, with `why` (a few fields) in its manifest. Raises `OSError`."""

    def __init__(self, path: Path, why: dict[str, Any], run_dir: RunDir, group: ProcessGroup):
        self.path = path
        self._why = why
        self._run_dir = run_dir
        self._group = group
        self._missing: list[str] = []
        self._asked: dict[str, Path] = {}
        """The file in which each process that was asked for its stacks writes them, by name."""
        path.mkdir(mode=0o700, parents=True)
        self._write_manifest()
        self._write_json("processes.json", group.board.statuses())
        for status in group.board.statuses():
            if status.pid:
                self._look_at(status)
        if run_dir.black_box.is_dir():
            with contextlib.suppress(shutil.Error):  # a file that has gone meanwhile
                shutil.copytree(run_dir.black_box, path / "black-box")

    def collect(self, then: Callable[[], None]) -> Steps:
        """Waits for the files of processes, and calls `then` once a hanging process can contribute nothing more.

        Raises `OSError`.
        """
        try:
            yield from self._await_stacks()
            yield from self._ask_joiners()
            then()
            yield from self._await_state()
        except GeneratorExit:
            self._missing.append("what comes later: the server has ended")
            raise
        finally:
            self._finish()

    def _finish(self) -> None:
        for child in self._group:
            lines = child.log.last(MAX_LINES)
            if lines:
                text = "".join(f"{line}\n" for line in lines)
                (self._directory_of(child.name) / "log").write_text(text, encoding="utf-8")
        self._write_manifest()

    def _look_at(self, status: ProcessStatus) -> None:
        """Copies the existing files at once, and requests the others."""
        directory = self._directory_of(status.name)
        copy_proc_files(status.pid, directory)
        stacks = self._run_dir.stacks_file(status.pid)
        child = self._group.find(status.name)
        if child is None or not child.pid:  # it has just ended, and may have left them at its end
            with contextlib.suppress(OSError):
                (directory / "stacks").write_bytes(stacks.read_bytes())
        elif run_state_of(child.pid) != "runs":
            self._missing.append(f"the stacks of {status.name}: it is stopped")
        elif ask_for_stacks(self._run_dir, child.pid):
            self._asked[status.name] = stacks
        else:
            self._missing.append(f"the stacks of {status.name}: it has not come so far yet")

    def _await_stacks(self) -> Steps:
        deadline_s = time.monotonic() + STACKS_S
        sizes: dict[str, int] = {}
        while self._asked and time.monotonic() < deadline_s:
            yield time.monotonic() + LOOK_S
            for name, path in list(self._asked.items()):
                text = path.read_bytes() if path.exists() else b""
                if text and sizes.get(name) == len(text):
                    (self._directory_of(name) / "stacks").write_bytes(text)
                    del self._asked[name]
                sizes[name] = len(text)
        self._missing += [f"the stacks of {name}: none came within {STACKS_S:g} s" for name in self._asked]

    def _ask_joiners(self) -> Steps:
        """Collects the stacks of engines on other machines; the files written here have those of their proxies."""
        names = [child.name for child in self._group if child.command.is_remote and self._group.is_up(child)]
        results = yield from _collected(self._group, names, admin.ReadStacks(), STACKS_S)
        for name, result in results.items():
            if isinstance(result, admin.Acknowledged):
                (self._directory_of(name) / "engine-stacks").write_text(result.text, encoding="utf-8")
            else:
                self._missing.append(f"the stacks of {name} on its machine: {result}")

    def _await_state(self) -> Steps:
        """Makes the frontends write their answers to operators' questions."""
        for front in self._group.frontends():
            if not self._group.is_up(front):
                continue
            command = admin.WriteState(str(self._directory_of(front.name)))
            results = yield from _collected(self._group, [front.name], command, STATE_TIMEOUT_S)
            if not isinstance(results[front.name], admin.Acknowledged):
                self._missing.append(f"what {front.name} would answer: {results[front.name]}")

    def _directory_of(self, name: str) -> Path:
        directory = self.path / "processes" / name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    def _write_manifest(self) -> None:
        config = self._run_dir.read_config()
        shown = msgspec.structs.replace(config, http=config.http.without_keys())
        self._write_json(
            MANIFEST,
            {
                **self._why,
                "written_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "monotonic_ns": time.monotonic_ns(),
                "missing": self._missing,
                "versions": _versions(),
                "host": _host(),
                "config": shown,
            },
        )

    def _write_json(self, name: str, content: object) -> None:
        (self.path / name).write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def _collected(
    group: ProcessGroup, names: Sequence[str], command: admin.ProcessCommand, timeout_s: float
) -> Generator[float | admin.Progress, None, dict[str, admin.ProcessResult]]:
    """Returns each process's answer, or why there is none."""
    if not names:
        return {}
    result = yield from instruct(group, admin.InstructProcesses(tuple(names), command, timeout_s))
    assert isinstance(result, admin.ProcessResults)
    return result.results


def _versions() -> dict[str, str]:
    return {"sluice": VERSION, "python": sys.version, "system": platform.platform(), **library_versions()}


def _host() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_bytes": memory.total,
        "available_bytes": memory.available,
    }
