"""Tables of beats in, losses out; `SECOND` is the time between two beats."""

from typing import Any

from frontend.recovery.sequence_tracker import SequenceTracker
from messages.control.processes import ProcessState, ProcessStatus
from messages.ring.requests import FramesLost

SECOND = 1_000_000_000
SENDER = 7


class Edge:
    """The tables of a scheduler that sends to a detokenizer, which beats a moment later."""

    def __init__(self) -> None:
        self.book = SequenceTracker()
        self.num_doubtful = 0
        self._now_ns = SECOND

    def show(
        self,
        num_sent: int,
        taken: tuple[int, int] | None,
        incarnation: int = 1,
        sender: int = SENDER,
        state: ProcessState = "ready",
    ) -> list[FramesLost]:
        """Shows the table after one more second and returns the reported losses."""
        self._now_ns += SECOND
        scheduler = ProcessStatus("scheduler", "ready", beat_ns=self._now_ns, sent={"detokenizer": (sender, num_sent)})
        detokenizer = ProcessStatus(
            "detokenizer",
            state,
            incarnation=incarnation,
            beat_ns=self._now_ns + SECOND // 10,
            received={} if taken is None else {sender: taken},
        )
        losses = self.book.follow([scheduler, detokenizer])
        self.num_doubtful += len(losses.doubtful)
        return losses.certain + losses.doubtful

    def show_often(self, *arguments: Any, **fields: Any) -> list[FramesLost]:
        """Shows the same counts in six tables and returns all reported losses."""
        return [lost for _ in range(6) for lost in self.show(*arguments, **fields)]


def lost(first: int, last: int, sender: int = SENDER) -> FramesLost:
    return FramesLost("detokenizer", sender, first, last)


def test_nothing_is_lost_while_everything_arrives():
    edge = Edge()
    assert edge.show(0, None) == []
    for number in range(1, 20):
        assert edge.show(number, (1, number)) == []


def test_the_last_frame_is_lost_when_the_receiver_turns_without_it():
    edge = Edge()
    edge.show(0, None)
    assert edge.show(5, (1, 4)) == edge.show(5, (1, 4)) == [], "it may be on its way"
    assert edge.show_often(5, (1, 4)) == [lost(5, 5)]


def test_the_only_frame_is_lost():
    edge = Edge()
    edge.show(0, None)
    assert edge.show_often(1, None) == [lost(1, 1)]


def test_frames_on_their_way_are_not_lost():
    edge = Edge()
    edge.show(0, None)
    for number in range(2, 20):
        assert edge.show(number, (1, number - 1)) == []


def test_a_receiver_in_a_long_step_has_lost_nothing():
    edge = Edge()
    edge.show(0, None)
    busy = ProcessStatus("detokenizer", "busy", incarnation=1, beat_ns=2 * SECOND, received={SENDER: (1, 3)})
    for beat in range(3, 30):
        scheduler = ProcessStatus("scheduler", "ready", beat_ns=beat * SECOND, sent={"detokenizer": (SENDER, 9)})
        assert edge.book.follow([scheduler, busy]) == ([], [])


def test_what_is_notified_is_not_reported_again_when_the_receiver_notices_the_gap():
    edge = Edge()
    edge.show(0, None)
    for _ in range(6):
        edge.show(5, (1, 4))
    assert edge.book.is_notified(lost(5, 5))
    assert edge.show(6, (1, 6)) == []
    assert not edge.book.is_notified(lost(5, 6))
    assert edge.show_often(7, (1, 6)) == [lost(7, 7)]


def test_what_a_dead_receiver_took_with_it_is_not_lost_again():
    edge = Edge()
    edge.show(0, None)
    edge.show(40, (1, 38))
    edge.show(42, (1, 38), state="restarting")
    for _ in range(6):
        assert edge.show(42, None, incarnation=2) == []
    assert edge.show(43, (43, 43), incarnation=2) == []


def test_the_first_frame_to_a_new_receiver_is_lost():
    edge = Edge()
    edge.show(0, None)
    edge.show(42, (1, 42))
    edge.show(42, None, state="restarting")
    assert edge.show(42, None, incarnation=2) == []
    assert edge.show_often(43, None, incarnation=2) == [lost(43, 43)]
    assert edge.num_doubtful == 0
    assert edge.show(45, (45, 45), incarnation=2) == [lost(44, 44)]
    assert edge.num_doubtful == 1, "its predecessor may have had that frame"


def test_the_first_frame_of_a_new_sender_is_lost():
    edge = Edge()
    edge.show(0, None)
    edge.show(42, (1, 42))
    assert edge.show(2, (2, 2), sender=8) == [lost(1, 1, sender=8)]
    assert edge.num_doubtful == 0
    assert edge.show(3, (2, 3), sender=8) == []


def test_frontends_side_by_side_are_distinguished():
    book = SequenceTracker()
    for beat in range(2, 9):
        sent = {"frontend": (1, 5), "frontend.2": (2, 7)} if beat > 2 else {}
        now_ns = beat * SECOND + SECOND // 10
        old = ProcessStatus("frontend.old", "ready", incarnation=1, received={1: (1, 5)}, uid_block=1, beat_ns=now_ns)
        new = ProcessStatus("frontend", "ready", incarnation=2, received={2: (1, 6)}, uid_block=2, beat_ns=now_ns)
        detokenizer = ProcessStatus("detokenizer", "ready", beat_ns=beat * SECOND, sent=sent)
        losses = book.follow([old, new, detokenizer])
        assert losses.certain in ([], [FramesLost("frontend.2", 2, 7, 7)])
        if losses.certain:
            return
    raise AssertionError("the loss is never told")


def test_a_new_frontend_has_lost_nothing_of_what_was_before():
    edge = Edge()
    for _ in range(6):
        assert edge.show(500, (490, 499)) == []
