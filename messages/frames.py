"""Numbers on the frames of a channel, by which a receiver notices those that are lost or come twice.

A frame is a header (who sends it, and its number from 1 on), then the message. A sender is one end of a channel in one
incarnation of a process, so a new one begins at 1 again; a receiver that is replaced begins with whatever number comes.
"""

import secrets
import struct

from messages.ring.requests import FramesLost

HEADER = struct.Struct("<QQ")
"""Sender and number."""

MAX_SENDERS = 64
"""Senders that a receiver remembers: the living ones, and some that have been replaced."""


def new_sender_id() -> int:
    """Returns a name for a sender that no other in the run has."""
    return secrets.randbits(63)


class Arrivals:
    """What has arrived at the receiver `name`. `received`: the first and the last number by sender."""

    def __init__(self, name: str):
        self._name = name
        self.received: dict[int, tuple[int, int]] = {}

    def note(self, sender: int, number: int) -> "FramesLost | bool":
        """Returns True for the next frame of its sender, False for one that has come before, or what is missing."""
        known = self.received.get(sender)
        if known is None:
            while len(self.received) >= MAX_SENDERS:
                del self.received[next(iter(self.received))]
            self.received[sender] = (number, number)
            return True
        first, last = known
        if number <= last:
            return False
        self.received[sender] = (first, number)
        return True if number == last + 1 else FramesLost(self._name, sender, last + 1, number - 1)

    def lost(self, sender: int, number: int) -> FramesLost:
        """Returns that one frame has arrived and cannot be read."""
        return FramesLost(self._name, sender, number, number)
