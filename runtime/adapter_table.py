"""The table of LoRA adapters by the names that clients use: a file that the launcher and all frontends share."""

import fcntl
import functools
from collections.abc import Callable
from pathlib import Path

import msgspec

from messages.ring.adapters import Adapter

Table = dict[str, Adapter]


def read_table(file: str) -> Table:
    """Returns the current table, which must not be changed; it is empty if `file` is. Costs a `stat`."""
    if not file:
        return {}
    status = Path(file).stat()
    return _decode(file, (status.st_ino, status.st_mtime_ns))


def write_table(file: str, table: Table) -> None:
    """Replaces the file at once, so that readers see the old table or the new one."""
    partial = Path(f"{file}.new")
    partial.write_bytes(msgspec.json.encode(table))
    partial.replace(file)


def change_table(file: str, change: Callable[[Table], None]) -> None:
    """Makes `change` in the table, unless it raises. Other processes that change it wait for that time."""
    with Path(f"{file}.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = dict(read_table(file))
        change(table)
        write_table(file, table)


@functools.lru_cache(maxsize=4)
def _decode(file: str, _version: tuple[int, int]) -> Table:
    return msgspec.json.decode(Path(file).read_bytes(), type=Table)
