"""The files in memory that hold KV caches: one for each scheduler of the run, which outlive its processes."""

import os

from messages.control import kind_of, place_of
from messages.engines import SCHEDULER
from runtime.run_dir import RunDir


class KVFiles:
    """Makes and gives back a file for each place of a scheduler, which its processes find in the run directory.

    A file has no name but that link: its memory is given back when the last process that has it has ended.
    """

    def __init__(self, run_dir: RunDir):
        self._run_dir = run_dir
        self._descriptors: dict[str, int] = {}

    def provide(self, name: str) -> None:
        """There is a file for the process `name` and its successors, if it is a scheduler."""
        place = place_of(name)
        if kind_of(name) == SCHEDULER and place not in self._descriptors:
            descriptor = self._descriptors[place] = os.memfd_create(f"sluice-kv-cache-{place}")
            self._run_dir.kv_file(place).symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")

    def drop(self, name: str) -> None:
        """Nobody comes after the process `name`."""
        if (descriptor := self._descriptors.pop(place_of(name), None)) is not None:
            self._run_dir.kv_file(place_of(name)).unlink(missing_ok=True)
            os.close(descriptor)

    def close(self) -> None:
        for place in list(self._descriptors):
            self.drop(place)
