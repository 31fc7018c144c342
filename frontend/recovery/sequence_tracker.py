"""Which frames have left one process of the ring and never reached the next, as far as their beats tell.

A receiver itself notices a frame that is missing before another one. What it cannot notice is the loss of the last
frame of a sender, and of those before the first that it has ever had from it.
"""

from collections.abc import Collection
from typing import NamedTuple

from messages.control.processes import ProcessStatus
from messages.ring.requests import FramesLost
from messages.ring.uids import socket_of

PATIENCE_NS = 1_500_000_000
"""How long a receiver's main loop turns without a frame that has left its sender, until that frame is lost."""


class Losses(NamedTuple):
    """`certain` ones, and frames from before the first that a receiver has taken since it replaced another one.

    Most of those went to the other one, after the last beat of their sender.
    """

    certain: list[FramesLost]
    doubtful: list[FramesLost]


class SequenceTracker:
    """Compares, table by table, what is sent and what is taken."""

    def __init__(self) -> None:
        self._edges: dict[int, _Edge] = {}
        self._has_seen_table = False

    def follow(self, statuses: Collection[ProcessStatus]) -> Losses:
        """Returns what is newly known to be lost. What was so before the first table is no news."""
        receivers = {socket_of(status): status for status in statuses if status.is_serving}
        known, self._edges = self._edges, {}
        losses = Losses([], [])
        for status in statuses:
            for name, (sender, num_sent) in status.sent.items():
                edge = known.get(sender) or _Edge(0 if self._has_seen_table else num_sent)
                self._edges[sender] = edge
                if name in receivers:
                    receiver = receivers[name]
                    taken = receiver.received.get(sender, (0, 0))
                    is_first, missing = edge.find_missing(num_sent, receiver, taken)
                    if missing is not None:
                        (losses.doubtful if is_first else losses.certain).append(FramesLost(name, sender, *missing))
                edge.note_sent(num_sent, status.beat_ns)
        self._has_seen_table = self._has_seen_table or bool(statuses)
        return losses

    def is_told(self, lost: FramesLost) -> bool:
        """Tells whether `follow` has returned these frames already: their receiver notices only with the next one."""
        edge = self._edges.get(lost.sender)
        return edge is not None and lost.last <= edge.told


class _Edge:
    """One sender and its receiver. Frames up to `floor` are not missed: they are told, or went with a dead receiver."""

    def __init__(self, floor: int):
        self._floor = floor
        self.told = 0
        self._incarnation = 0
        self._num_sent = 0
        self._num_sent_ns = 0
        self._stuck_at = -1
        self._stuck_ns = 0

    def find_missing(
        self, num_sent: int, receiver: ProcessStatus, taken: tuple[int, int]
    ) -> tuple[bool, tuple[int, int] | None]:
        """Returns the first and last number that are lost, by the beat of a living receiver, or `None`.

        Before them: whether they are from before the first that it has taken since it replaced another one.
        """
        if receiver.incarnation != self._incarnation:
            self._incarnation = receiver.incarnation
            self._floor = max(self._floor, self._num_sent)
            self._stuck_at = -1
        first, last = taken
        if first > self._floor + 1:
            return self._floor > 0, self._tell(first - 1)
        if max(last, self._floor) >= num_sent:
            self._stuck_at = -1
            return False, None
        if self._stuck_at != last:
            if num_sent == self._num_sent and receiver.beat_ns > self._num_sent_ns:
                self._stuck_at, self._stuck_ns = last, receiver.beat_ns
            return False, None
        if receiver.beat_ns - self._stuck_ns < PATIENCE_NS:
            return False, None
        self._floor = max(self._floor, last)
        return False, self._tell(num_sent)

    def note_sent(self, num_sent: int, beat_ns: int) -> None:
        """Takes what the sender's beat says; the time that counts is when it said so first."""
        if num_sent != self._num_sent:
            self._num_sent, self._num_sent_ns = num_sent, beat_ns

    def _tell(self, up_to: int) -> tuple[int, int]:
        missing = self._floor + 1, up_to
        self._floor = self.told = up_to
        self._stuck_at = -1
        return missing
