from messages.control.histograms import BOUNDS, CounterTotals, HistogramCounts
from messages.control.processes import Beat, Ready
from supervisor.status_board import BEAT_INTERVAL_S, CHANGE_INTERVAL_S, StatusBoard

S = 1_000_000_000
LATER = 10**18
"""A time after every stamp that the board takes by itself."""


def make_ready() -> StatusBoard:
    board = StatusBoard(["a", "b"], hang_timeout_s=5.0)
    for pid, name in enumerate(("a", "b"), start=10):
        board.started(name, pid, 1)
        board.ready(name)
        board.beat(name, Beat(LATER))
    board.publish(LATER)
    return board


def test_who_may_be_absent_may_not_be_all_of_a_kind():
    board = StatusBoard(["tokenizer", "scheduler", "scheduler-2"], hang_timeout_s=5.0)
    remote = ["scheduler-2"]
    board.ready("tokenizer")
    assert not board.is_ready(remote)
    board.ready("scheduler-2")
    assert not board.is_ready(remote), "the one that is started here must come"
    assert board.is_ready(["scheduler"])
    board.restarting("scheduler-2")
    board.ready("scheduler")
    assert board.is_ready(remote)
    assert not board.is_ready()


def test_states_follow_the_life_of_a_process():
    board = StatusBoard(["a"], hang_timeout_s=5.0)
    assert board.status("a").state == "starting"
    board.started("a", 10, 1)
    assert board.phase("a", "loading", 0.5)
    assert not board.phase("a", "loading", 0.7)
    assert (board.status("a").phase, board.status("a").fraction) == ("loading", 0.7)
    board.beat("a", Beat(LATER))
    assert board.status("a").state == "starting"
    assert not board.is_ready()
    board.ready("a")
    assert board.is_ready()
    assert (board.status("a").state, board.status("a").phase, board.status("a").fraction) == ("ready", "", None)
    histograms = {"step_rows": HistogramCounts((1, 0), 1.0)}
    board.beat("a", Beat(LATER + S, busy_since_ns=LATER, gauges={"rows": 2}, histograms=histograms))
    assert (board.status("a").state, board.status("a").gauges) == ("busy", {"rows": 2})
    assert board.status("a").histograms == histograms
    board.ended("a")
    assert (board.status("a").state, board.status("a").pid, board.status("a").gauges) == ("dead", 0, {})
    assert not board.is_ready()
    board.restarting("a")
    assert (board.status("a").state, board.status("a").num_restarts) == ("restarting", 1)
    assert not board.is_ready()
    assert board.find_newly_hung(LATER + 100 * S) == []
    board.started("a", 11, 2)
    status = board.status("a")
    assert (status.state, status.incarnation, status.num_restarts, status.gauges) == ("starting", 2, 1, {})
    board.ready("a")
    assert board.status("a").num_restarts == 1


def test_what_a_process_does_without_is_known_while_it_serves():
    board = StatusBoard(["a"], hang_timeout_s=5.0)
    board.started("a", 10, 1)
    board.ready("a", Ready("no CUDA graphs", {"dtype": "float32"}))
    board.beat("a", Beat(LATER))
    assert board.status("a").degraded == "no CUDA graphs"
    board.ended("a")
    assert board.status("a").degraded == ""
    assert board.status("a").placement == {"dtype": "float32"}, "the next one will say the same"
    board.started("a", 11, 2)
    board.ready("a")
    assert board.status("a").degraded == ""


def counts(first: int) -> dict[str, HistogramCounts]:
    return {"step_rows": HistogramCounts((first, *([0] * len(BOUNDS["step_rows"]))), 2.0 * first)}


def test_what_a_process_has_counted_outlives_it_and_its_successors():
    board = StatusBoard(["scheduler"], hang_timeout_s=5.0)
    for pid, num_steps in enumerate((3, 4), start=1):
        board.started("scheduler", pid, pid)
        board.ready("scheduler")
        board.beat("scheduler", Beat(LATER, gauges={"steps": 1.0, "running": 2.0}, histograms=counts(1)))
        gauges = {"steps": float(num_steps), "running": 2.0}
        board.beat("scheduler", Beat(LATER, gauges=gauges, histograms=counts(num_steps)))
        board.ended("scheduler")
        board.restarting("scheduler")
    board.started("scheduler", 3, 3)
    assert board.status("scheduler").counted == CounterTotals({"steps": 7.0}, counts(7))
    board.ready("scheduler")
    board.beat("scheduler", Beat(LATER, gauges={"steps": 1.0, "prompt_tokens": 5.0}))
    counted = board.status("scheduler").counted
    assert counted == CounterTotals({"steps": 8.0, "prompt_tokens": 5.0}, counts(7))


def test_a_successor_by_order_continues_counting():
    board = StatusBoard(["scheduler"], hang_timeout_s=5.0)
    board.started("scheduler", 1, 1)
    board.beat("scheduler", Beat(LATER, gauges={"steps": 3.0}, histograms=counts(3)))
    board.add("scheduler.next")
    board.started("scheduler.next", 2, 2)
    board.ended("scheduler")
    board.waiting_for_successor("scheduler")
    board.rename("scheduler.next", "scheduler")
    board.beat("scheduler", Beat(LATER, gauges={"steps": 2.0}, histograms=counts(2)))
    assert board.status("scheduler").counted == CounterTotals({"steps": 5.0}, counts(5))


def test_a_process_without_beats_is_hung_once_and_a_beat_brings_it_back():
    board = make_ready()
    board.beat("b", Beat(LATER + 3 * S))
    assert board.find_newly_hung(LATER + 5 * S) == []
    (hung,) = board.find_newly_hung(LATER + 6 * S)
    assert hung.name == "a"
    assert board.status("a").state == "hung"
    assert board.find_newly_hung(LATER + 7 * S) == []
    assert board.beat("a", Beat(LATER + 8 * S))
    assert board.status("a").state == "ready"
    assert not board.beat("a", Beat(LATER + 8 * S))


def test_after_the_machine_was_stopped_no_process_is_late():
    board = make_ready()
    board.started("b", 11, 2)
    board.resume(LATER + 100 * S)
    assert board.find_newly_hung(LATER + 104 * S) == []
    assert board.seconds_without_progress("b", LATER + 101 * S) == 1.0
    (hung,) = board.find_newly_hung(LATER + 106 * S)
    assert hung.name == "a"


def test_one_that_hung_and_was_killed_is_shown_as_such_until_its_successor_starts():
    board = make_ready()
    board.find_newly_hung(LATER + 6 * S)
    board.publish(LATER + 6 * S)
    board.killed("a")
    assert board.due_in_s(LATER + 7 * S) == 0
    assert (board.status("a").state, board.status("a").is_killed, board.status("b").is_killed) == ("hung", True, False)
    board.ended("a")
    board.restarting("a")
    board.started("a", 11, 2)
    assert not board.status("a").is_killed


def test_nothing_new_means_nothing_is_due():
    assert make_ready().due_in_s(LATER + 100 * S) is None


def test_beats_are_notified_together_about_once_a_second():
    board = make_ready()
    board.beat("a", Beat(LATER + 1))
    assert board.due_in_s(LATER) == BEAT_INTERVAL_S
    board.beat("b", Beat(LATER + 2))
    assert board.due_in_s(LATER + S) == 0
    assert [status.beat_ns for status in board.publish(LATER + S).processes] == [LATER + 1, LATER + 2]
    assert board.due_in_s(LATER + S) is None


def test_a_change_is_notified_at_once_but_fast_ones_together():
    board = make_ready()
    board.beat("a", Beat(LATER, busy_since_ns=LATER))
    assert board.due_in_s(LATER + S) == 0
    board.publish(LATER + S)
    board.beat("a", Beat(LATER))
    assert board.due_in_s(LATER + S) == CHANGE_INTERVAL_S


def test_the_time_without_progress_counts_only_while_a_process_starts():
    board = StatusBoard(["a"], hang_timeout_s=5.0)
    board.started("a", 10, 1)
    assert board.seconds_without_progress("a", LATER) > 0
    board.ready("a")
    assert board.seconds_without_progress("a", LATER) == 0
