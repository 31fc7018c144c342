from messages.frames import MAX_SENDERS, Arrivals
from messages.ring.requests import FramesLost

SENDER = 7


def test_frames_in_order_are_news_and_repeated_ones_are_not():
    arrivals = Arrivals("scheduler")
    assert [arrivals.record(SENDER, number) for number in (1, 2, 2, 1, 3)] == [True, True, False, False, True]
    assert arrivals.received == {SENDER: (1, 3)}


def test_a_gap_is_notified_once_and_a_late_frame_is_dropped():
    arrivals = Arrivals("scheduler")
    arrivals.record(SENDER, 1)
    assert arrivals.record(SENDER, 5) == FramesLost("scheduler", SENDER, 2, 4)
    assert arrivals.record(SENDER, 6) is True
    assert arrivals.record(SENDER, 3) is False


def test_a_receiver_that_is_new_begins_where_the_sender_has_come_to():
    arrivals = Arrivals("scheduler")
    assert arrivals.record(SENDER, 41) is True
    assert arrivals.record(SENDER, 42) is True
    assert arrivals.received == {SENDER: (41, 42)}


def test_senders_that_were_replaced_long_ago_are_forgotten():
    arrivals = Arrivals("scheduler")
    for sender in range(MAX_SENDERS + 3):
        arrivals.record(sender, 1)
    assert len(arrivals.received) == MAX_SENDERS
    assert arrivals.record(MAX_SENDERS + 2, 2) is True
