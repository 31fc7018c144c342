"""Detects frames that left one process of the ring but never reached the next, from the counters in their beats.

A receiver notices a frame that is missing before another one. It cannot notice the loss of a sender's last frame, or of
the frames before the first one that it received.
"""

from collections.abc import Collection
from typing import NamedTuple

from messages.control.processes import ProcessStatus
from messages.frontends import socket_of
from messages.ring.requests import FramesLost

PATIENCE_NS = 1_500_000_000
"""How long a receiver's main loop runs without receiving a sent frame, until the frame counts as lost."""


class Losses(NamedTuple):
    """`certain` losses, and `doubtful` frames: those before the first one that a replaced receiver has received.

    Most of these went to its predecessor, after the last beat of their sender.
    """

    certain: list[FramesLost]
    doubtful: list[FramesLost]


class SequenceTracker:
    """Compares the counts of sent and received frames in each table."""

    def __init__(self) -> None:
        self._edges: dict[int, _Edge] = {}
        self._has_seen_table = False

    def follow(self, statuses: Collection[ProcessStatus]) -> Losses:
        """Returns the newly detected losses. Losses before the first table do not count."""
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
                edge.record_sent(num_sent, status.beat_ns)
        self._has_seen_table = self._has_seen_table or bool(statuses)
        return losses

    def is_notified(self, lost: FramesLost) -> bool:
        """True if `follow` has already returned these frames: their receiver notices only at the next frame."""
        edge = self._edges.get(lost.sender)
        return edge is not None and lost.last <= edge.reported


class _Edge:
    """One sender and its receiver. Frames up to `floor` do not count: they are reported, or died with a receiver."""

    def __init__(self, floor: int):
        self._floor = floor
        self.reported = 0
        self._incarnation = 0
        self._num_sent = 0
        self._num_sent_ns = 0
        self._stuck_at = -1
        self._stuck_ns = 0

    def find_missing(
        self, num_sent: int, receiver: ProcessStatus, taken: tuple[int, int]
    ) -> tuple[bool, tuple[int, int] | None]:
        """Returns the first and last number of the lost frames, by the beat of a live receiver, or `None`.

        The leading bool is True if they precede the first frame that the receiver has received since it started.
        """
        if receiver.incarnation != self._incarnation:
            self._incarnation = receiver.incarnation
            self._floor = max(self._floor, self._num_sent)
            self._stuck_at = -1
        first, last = taken
        if first > self._floor + 1:
            return self._floor > 0, self._report(first - 1)
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
        return False, self._report(num_sent)

    def record_sent(self, num_sent: int, beat_ns: int) -> None:
        """Records the count in the sender's beat, and the time when it was first reported."""
        if num_sent != self._num_sent:
            self._num_sent, self._num_sent_ns = num_sent, beat_ns

    def _report(self, up_to: int) -> tuple[int, int]:
        missing = self._floor + 1, up_to
        self._floor = self.reported = up_to
        self._stuck_at = -1
        return missing
