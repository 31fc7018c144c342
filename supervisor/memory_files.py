"""The files in memory that outlive the schedulers of the run: a KV cache for each, and the weights of all."""

import os
from pathlib import Path

from messages.control import kind_of, place_of
from messages.engines import SCHEDULER
from runtime.numa import allowed_cpus, file_of_group, read_nodes
from runtime.run_dir import RunDir


class MemoryFiles:
    """Makes and gives back a file for the weights (one for each NUMA node) and one for each place of a scheduler.

    They are found in the run directory. A file has no name but the link there: its memory is given back when the last
    process that has it has ended.
    """

    def __init__(self, run_dir: RunDir):
        self._run_dir = run_dir
        self._descriptors: dict[Path, int] = {}
        for group in range(len(read_nodes(allowed_cpus()))):
            self._make(file_of_group(run_dir.weights_file, group))

    def provide(self, name: str) -> None:
        """There is a file for the process `name` and its successors, if it is a scheduler."""
        path = self._run_dir.kv_file(place_of(name))
        if kind_of(name) == SCHEDULER and path not in self._descriptors:
            self._make(path)

    def drop(self, name: str) -> None:
        """Nobody comes after the process `name`."""
        self._close(self._run_dir.kv_file(place_of(name)))

    def close(self) -> None:
        for path in list(self._descriptors):
            self._close(path)

    def _make(self, path: Path) -> None:
        descriptor = self._descriptors[path] = os.memfd_create(f"sluice-{path.name}")
        path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")

    def _close(self, path: Path) -> None:
        if (descriptor := self._descriptors.pop(path, None)) is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)
