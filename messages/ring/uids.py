"""The uid of a request identifies its frontend.

The launcher assigns a block of 2**32 uids to each frontend process that starts, and counts these starts during a run.
So a uid is unique in the run, however many frontends run at once or one after another.
"""

from collections.abc import Iterable

from messages.ring.requests import DropBefore

UIDS_PER_BLOCK = 2**32
"""Uids stay below 2**53 for two million starts, so every JSON reader represents them exactly."""

SOCKET = "frontend"


def block_of(uid: int) -> int:
    """Returns the number of the block that contains `uid`, counted from 1."""
    return max(1, uid // UIDS_PER_BLOCK)


def first_uid_of(block: int) -> int:
    """Returns a number below all uids of this block and above those of earlier blocks."""
    return block * UIDS_PER_BLOCK


def frontend_socket(block: int) -> str:
    """Returns the name of the socket of the frontend with this block: `frontend`, then `frontend.2` …"""
    return SOCKET if block <= 1 else f"{SOCKET}.{block}"


def frontend_blocks(sockets: Iterable[str]) -> list[int]:
    """Returns the blocks of the frontends among the owners of these sockets."""
    numbers = {socket: socket.removeprefix(SOCKET).removeprefix(".") or "1" for socket in sockets}
    return [int(number) for socket, number in numbers.items() if socket.startswith(SOCKET) and number.isdigit()]


def find_gone(known_blocks: Iterable[int], living_blocks: Iterable[int]) -> DropBefore | None:
    """Returns the message about frontends that are gone, `None` if all are alive.

    Blocks are assigned in order, so each block up to the largest known one belongs to a frontend that is alive or gone.
    """
    living = set(living_blocks)
    latest_gone = max(known_blocks, default=0)
    while latest_gone in living:
        latest_gone -= 1
    if latest_gone < 1:
        return None
    return DropBefore(first_uid_of(latest_gone + 1), tuple(sorted(block for block in living if block < latest_gone)))


class GoneRequests:
    """The requests whose clients are gone, collected from all `DropBefore` messages."""

    def __init__(self) -> None:
        self._end_uid = 0
        """The clients of smaller uids are gone, except in living blocks."""
        self._living: frozenset[int] = frozenset()

    def record(self, drop: DropBefore) -> None:
        """Adds the requests of `drop`. Messages may come in any order: a frontend that is gone never returns."""
        other = GoneRequests()
        other._end_uid, other._living = drop.uid, frozenset(drop.living_blocks)
        self._living = frozenset(
            block
            for block in self._living | other._living
            if not self.has(first_uid_of(block)) and not other.has(first_uid_of(block))
        )
        self._end_uid = max(self._end_uid, drop.uid)

    def has(self, uid: int) -> bool:
        return uid < self._end_uid and block_of(uid) not in self._living
