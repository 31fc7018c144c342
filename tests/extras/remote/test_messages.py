from extras.remote.messages import shift_stamps
from messages.control.processes import Beat
from messages.ring.replies import DetokenizeMsg
from messages.ring.timeline import ChunkRow, QueueFacts, ScheduleReport

FACTS = QueueFacts(None, 0, 1, 4, 8, 64, 2, 0, 0, 0, 0.5)


def test_all_stamps_go_to_the_other_clock_also_in_rows():
    report = ScheduleReport(50, FACTS, chunks=(ChunkRow(7, 1, 40, 0, 5, 5), ChunkRow(8, 1, 0, 0, 2, 2)), step_id=3)
    shifted = shift_stamps(report, 1000)
    assert (shifted.planned_ns, [row.queued_ns for row in shifted.chunks]) == (1050, [1040, 0])
    assert shift_stamps(shifted, -1000) == report


def test_what_has_not_been_stays_so_and_nothing_else_changes():
    assert shift_stamps(Beat(5, busy_since_ns=0, gauges={"rows": 1.0}), 10) == Beat(15, gauges={"rows": 1.0})
    message = DetokenizeMsg(step_id=1, uids=b"", attempts=b"", token_ids=b"")
    assert shift_stamps(message, 10) == message
