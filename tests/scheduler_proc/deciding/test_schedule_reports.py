"""Reports of plans for timelines: prompts in work, what others wait for, and preempted rows."""

from typing import Any

import msgspec
import pytest

from messages.ring.requests import AbortMsg
from messages.ring.timeline import ScheduleReport, WaitingRow
from scheduler_proc.deciding import schedule_reports
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg


def prompt(length: int, first: int = 0) -> list[int]:
    """Returns a prompt that shares no page with one of another `first`."""
    return [(first * 13 + position * position) % VOCAB_SIZE for position in range(length)]


class Listening(Bench):
    """A bench that keeps the reports."""

    def step(self) -> dict[int, int]:
        batch = self.scheduler.schedule()
        if batch is None:
            return {}
        replies = self.scheduler.pop_replies()
        self.reports += [reply for reply in replies if isinstance(reply, ScheduleReport)]
        self.inbox.take(replies)
        self.scheduler.commit(self.runner.run(batch))
        self.scheduler.check()
        self.inbox.take(self.scheduler.pop_replies())
        return {0: 1}

    reports: list[ScheduleReport]

    def __init__(self, **sizes: Any):
        super().__init__(**sizes)
        self.reports = []

    @property
    def last(self) -> ScheduleReport:
        return self.reports[-1]


def test_chunks_are_notified_before_they_run_and_decode_steps_report_nothing():
    bench = Listening(max_num_batched_tokens=8)
    bench.send(user_msg(1, prompt(20), max_tokens=10, ignore_eos=True))
    for _ in range(3):
        bench.step()
    assert [(row.start, row.end, row.num_tokens) for report in bench.reports for row in report.chunks] == [
        (0, 8, 20),
        (8, 16, 20),
        (16, 20, 20),
    ]
    assert all(row.queued_ns <= report.planned_ns for report in bench.reports for row in report.chunks)
    assert [report.step_id for report in bench.reports] == [1, 2, 3]
    num_reports = len(bench.reports)
    bench.step()
    bench.step()
    assert len(bench.reports) == num_reports


def test_a_queue_behind_full_rows():
    bench = Listening(max_num_seqs=2)
    bench.send(*(user_msg(uid, prompt(6, uid), max_tokens=9, ignore_eos=True) for uid in range(1, 5)))
    bench.step()
    facts = bench.last.facts
    assert (facts.waits_for, facts.num_waiting, facts.num_running, facts.max_num_seqs) == ("rows", 2, 2, 2)
    assert [(row.uid, row.num_before, row.num_pages) for row in bench.last.waiting] == [(3, 0, 2), (4, 1, 2)]
    assert facts.admitted_per_s == 0, "filling rows that were free says nothing about the queue"
    bench.run()
    last = next(report for report in reversed(bench.reports) if any(row.uid == 4 for row in report.chunks))
    assert last.facts.waits_for is None


def test_a_queue_behind_the_tokens_of_a_step():
    bench = Listening(max_num_batched_tokens=8)
    bench.send(user_msg(1, prompt(20, 1), max_tokens=2), user_msg(2, prompt(6, 2), max_tokens=2))
    bench.step()
    facts = bench.last.facts
    assert (facts.waits_for, facts.num_step_tokens, facts.max_num_batched_tokens) == ("tokens", 8, 8)
    assert [row.uid for row in bench.last.waiting] == [2]


def test_a_queue_behind_pages_reports_how_many_are_needed_and_had():
    bench = Listening(num_pages=16, max_num_batched_tokens=64)
    bench.send(user_msg(1, prompt(30, 1), max_tokens=8, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, prompt(40, 2), max_tokens=2), user_msg(3, prompt(4, 3), max_tokens=2))
    bench.step()
    facts = bench.last.facts
    assert facts.waits_for == "pages"
    assert facts.num_needed_pages == 11  # 40 tokens and one more, four to a page
    assert facts.num_promised_pages == 1  # for the row that runs to grow into
    assert facts.num_free_pages + facts.num_evictable_pages < 11 + 1
    assert [row.num_before for row in bench.last.waiting] == [0, 1]


def test_a_prompt_that_another_one_computes_is_notified_by_whom():
    bench = Listening(max_num_batched_tokens=64)
    bench.send(user_msg(1, prompt(20), max_tokens=3), user_msg(2, prompt(20), max_tokens=3))
    bench.step()
    assert [(row.uid, row.by_uid) for row in bench.last.delayed] == [(2, 1)]
    bench.step()
    assert [row.uid for row in bench.last.chunks] == [2]


def test_a_prompt_for_which_no_tokens_are_left():
    bench = Listening(max_num_seqs=4, max_num_batched_tokens=8)
    bench.send(user_msg(1, prompt(4, 1), max_tokens=9, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, prompt(10, 2), max_tokens=9), user_msg(3, prompt(10, 3), max_tokens=9))
    bench.step()  # 7 tokens of 2
    bench.step()  # 3 of 2, 4 of 3
    assert [(row.uid, row.end) for row in bench.last.chunks] == [(2, 10), (3, 4)]
    bench.send(user_msg(4, prompt(30, 4), max_tokens=3, priority=-1))
    bench.step()
    assert [(row.uid, row.end) for row in bench.last.chunks] == [(3, 10)]
    assert [row.uid for row in bench.last.waiting] == [4]


def test_who_gives_way_is_notified_with_the_one_who_needed_the_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule_reports, "REFRESH_NS", 0)
    bench = Listening(num_pages=16, max_num_batched_tokens=64)
    bench.send(*(user_msg(uid, prompt(20, uid), max_tokens=40, ignore_eos=True) for uid in (1, 2)))
    while not bench.reports or not bench.last.preempted:
        assert bench.step()
    (row,) = bench.last.preempted
    assert (row.uid, row.by_uid) == (2, 1)
    waiting = next(one for one in bench.last.waiting if one.uid == 2)
    assert waiting.num_before == 0
    bench.run()


def test_all_that_wait_are_notified_again_after_a_while(monkeypatch: pytest.MonkeyPatch):
    bench = Listening(max_num_seqs=1)
    bench.send(*(user_msg(uid, prompt(6, uid), max_tokens=30, ignore_eos=True) for uid in range(1, 5)))
    bench.step()
    num_reports = len(bench.reports)
    bench.send(AbortMsg(2, 0))
    bench.step()
    assert len(bench.reports) == num_reports, "nothing new, and the second is not over"
    monkeypatch.setattr(schedule_reports, "REFRESH_NS", 0)
    bench.step()
    assert [(row.uid, row.num_before) for row in bench.last.waiting] == [(3, 0), (4, 1)]


def test_a_request_that_ends_before_it_is_notified_of_is_never_reported_of():
    bench = Listening(max_num_seqs=1)
    bench.send(user_msg(1, prompt(6, 1), max_tokens=30, ignore_eos=True), user_msg(2, prompt(6, 2)), AbortMsg(2, 0))
    bench.step()
    assert all(not isinstance(row, WaitingRow) or row.uid != 2 for report in bench.reports for row in report.waiting)
    assert bench.last.facts.waits_for is None


def test_places_of_several_clients_are_by_turns_and_count_tokens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule_reports, "REFRESH_NS", 0)
    bench = Listening(max_num_seqs=1)
    rows = [user_msg(uid, prompt(6, uid), max_tokens=9, ignore_eos=True) for uid in range(1, 7)]
    clients = ["one", "one", "one", "one", "two", "three"]
    bench.send(*[msgspec.structs.replace(row, client=client) for row, client in zip(rows, clients, strict=True)])
    bench.step()
    (row,) = bench.last.chunks
    assert row.uid == 5, "the client with the fewest tokens is first"
    places = {row.uid: (row.num_before, row.num_tokens_before, row.num_clients_before) for row in bench.last.waiting}
    assert sorted(places.values()) == [(0, 6, 0), (1, 12, 1), (2, 18, 1), (3, 24, 1), (4, 30, 1)]
    assert {places[1][0], places[6][0]} == {0, 1}, "each client's first request comes first"
    assert [places[uid][0] for uid in (2, 3, 4)] == [2, 3, 4]
    bench.run()
