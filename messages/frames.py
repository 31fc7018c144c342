"""Sequence numbers of frames, by which a receiver detects lost and duplicate ones.

A frame is a header (its sender, and its number counted from 1) followed by the message. A sender is one end of a
channel in one incarnation of a process, so a new one begins at 1 again. A new receiver begins with the first number
that arrives.
"""

import struct

from messages.ring.requests import FramesLost

HEADER = struct.Struct("<QQ")
"""Sender and number."""

MAX_SENDERS = 64
"""Senders that a receiver remembers: the current ones, and some that have been replaced."""


class Arrivals:
    """The frames that have arrived at the receiver `name`. `received`: first and last number by sender."""

    def __init__(self, name: str):
        self._name = name
        self.received: dict[int, tuple[int, int]] = {}

    def record(self, sender: int, number: int) -> "FramesLost | bool":
        """Returns True for the sender's next frame, False for a duplicate, or the missing frames before this one."""
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
        """Returns the report of a frame that has arrived but cannot be decoded."""
        return FramesLost(self._name, sender, number, number)
