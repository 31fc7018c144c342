"""Which frontend a request belongs to: its uid tells.

Each start of a frontend gets a block of 2**32 uids from the launcher, which counts the starts of all of them in a run.
So every uid of a run is given once, whichever frontends live side by side or after each other.
"""

from collections.abc import Iterable

from messages.control.processes import FRONTEND, ProcessStatus, kind_of
from messages.ring.requests import DropBefore

UIDS_PER_BLOCK = 2**32
"""Uids stay below 2**53, so that every JSON reader keeps them exact, for two million starts."""


def block_of(uid: int) -> int:
    """Returns the number, from 1 on, of the block that `uid` is in."""
    return max(1, uid // UIDS_PER_BLOCK)


def first_uid_of(block: int) -> int:
    """Returns a number below all uids of this block and above those of all blocks before it."""
    return block * UIDS_PER_BLOCK


def frontend_socket(block: int) -> str:
    """Returns the name of the socket that the frontend with this block binds: `frontend`, then `frontend.2` …"""
    return "frontend" if block <= 1 else f"frontend.{block}"


def frontend_blocks(sockets: Iterable[str]) -> list[int]:
    """Returns the blocks of the frontends that have bound some of these sockets."""
    numbers = {socket: socket.removeprefix(FRONTEND).removeprefix(".") or "1" for socket in sockets}
    return [int(number) for socket, number in numbers.items() if socket.startswith(FRONTEND) and number.isdigit()]


def socket_of(status: ProcessStatus) -> str:
    """Returns the name of the socket that a process binds; frontends that live side by side have one each."""
    return frontend_socket(status.uid_block) if kind_of(status.name) == FRONTEND else status.name


def find_gone(known_blocks: Iterable[int], living_blocks: Iterable[int]) -> DropBefore | None:
    """Returns what to tell of frontends that are gone, `None` where none is.

    Blocks are given in order, so those up to the largest known one are of frontends that live or are gone.
    """
    living = set(living_blocks)
    latest_gone = max(known_blocks, default=0)
    while latest_gone in living:
        latest_gone -= 1
    if latest_gone < 1:
        return None
    return DropBefore(first_uid_of(latest_gone + 1), tuple(sorted(block for block in living if block < latest_gone)))


class GoneRequests:
    """The requests that have lost their client, by all that was told of frontends that are gone."""

    def __init__(self) -> None:
        self._end_uid = 0
        """Smaller uids are of clients that are gone, but for those in the blocks that live."""
        self._living: frozenset[int] = frozenset()

    def note(self, drop: DropBefore) -> None:
        """Adds what `drop` says. Two frontends may say it in any order: who is gone once is gone for ever."""
        told = GoneRequests()
        told._end_uid, told._living = drop.uid, frozenset(drop.living_blocks)
        self._living = frozenset(
            block
            for block in self._living | told._living
            if not self.has(first_uid_of(block)) and not told.has(first_uid_of(block))
        )
        self._end_uid = max(self._end_uid, drop.uid)

    def has(self, uid: int) -> bool:
        return uid < self._end_uid and block_of(uid) not in self._living
