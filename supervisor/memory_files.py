"""The files in memory that outlive schedulers and ranks: a KV cache for each, encodings of images, and weights."""

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

from kernels.cpu.huge_memory import HUGE_PAGE, make_huge, map_file
from messages.control.processes import kind_of, place_of
from messages.engine_names import RANK, SCHEDULER, rank_of
from runtime.numa import allowed_cpus, file_of_group, read_nodes
from runtime.run_dir import RunDir

SLICE_BYTES = 16 << 20
"""The bytes that are mapped at a time: when memory runs out, the system counts mapped bytes as the launcher's own."""


class MemoryFiles:
    """Makes and gives back a file for the weights (one for each NUMA node and rank), two for each place of a scheduler,
    and one for each rank's KV cache.

    They are found in the run directory. A file has no name but the link there: its memory is given back when the last
    process that has it has ended. `num_weight_bytes`: of the weights, if it is known.
    """

    def __init__(self, run_dir: RunDir, num_weight_bytes: int = 0):
        self._run_dir = run_dir
        self._descriptors: dict[Path, int] = {}
        self._num_groups = len(read_nodes(allowed_cpus()))
        self._make_weights(rank=0)
        # With several NUMA nodes only a scheduler knows its own.
        self._num_weight_bytes = num_weight_bytes if self._num_groups == 1 else 0
        os.truncate(run_dir.weights_file, self._num_weight_bytes)

    def make_weight_memory(self) -> None:
        """Asks for the memory of the weights in a thread, while a scheduler imports torch.

        The file has its size since before any scheduler, which sets another; nothing in it changes. Where the system
        refuses, the scheduler asks again.
        """
        if self._num_weight_bytes:
            threading.Thread(target=self._make_slices, name="weight-memory", daemon=True).start()

    def _make_slices(self) -> None:
        memory = mmap.mmap(-1, SLICE_BYTES + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address += -address % HUGE_PAGE
        for offset in range(0, self._num_weight_bytes, SLICE_BYTES):
            with suppress(OSError, KeyError):  # the run is over
                num_bytes = min(SLICE_BYTES, self._num_weight_bytes - offset)
                map_file(address, num_bytes, self._descriptors[self._run_dir.weights_file], offset)
                make_huge(address, num_bytes)

    def provide(self, name: str) -> None:
        """Creates the files for the process `name` and its successors, if it needs any. Raises `OSError`."""
        if kind_of(name) == RANK:
            self._make_weights(rank_of(name))
        for path in self._files_of(name) if kind_of(name) in (SCHEDULER, RANK) else ():
            if path not in self._descriptors:
                self._make(path)

    def clear(self, name: str) -> None:
        """Frees the KV cache of process `name`, which does not run."""
        if (descriptor := self._descriptors.get(self._run_dir.kv_file(place_of(name)))) is not None:
            os.truncate(descriptor, 0)

    def drop(self, name: str) -> None:
        """Closes the files of process `name`, which will have no successor."""
        for path in self._files_of(name):
            self._close(path)

    def close(self) -> None:
        for path in list(self._descriptors):
            self._close(path)

    def _files_of(self, name: str) -> tuple[Path, ...]:
        kv_file = self._run_dir.kv_file(place_of(name))
        return (kv_file,) if kind_of(name) == RANK else (kv_file, self._run_dir.rows_file(place_of(name)))

    def _make_weights(self, rank: int) -> None:
        for group in range(self._num_groups):
            path = file_of_group(self._run_dir.weights_of(rank), group)
            if path not in self._descriptors:
                self._make(path)

    def _make(self, path: Path) -> None:
        descriptor = os.memfd_create(f"sluice-{path.name}")
        try:
            path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
        except OSError:
            os.close(descriptor)
            raise
        self._descriptors[path] = descriptor

    def _close(self, path: Path) -> None:
        if (descriptor := self._descriptors.pop(path, None)) is not None:
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)
