"""Steps are assembled from plans and ends, and recorded only while they are watched."""

import time
from typing import Any

import pytest

from frontend.requests import recent_steps
from frontend.requests.recent_steps import RecentSteps, StepSpan, join_steps
from messages.columns import pack_int32
from messages.ring.peers import StepEnd, StepPlan
from messages.ring.replies import StepReplies, UserReply
from messages.ring.timeline import ChunkRow, QueueFacts, ScheduleReport

FACTS = QueueFacts(None, 0, 1, 256, 19, 512, 3, 40, 0, 0, 0.0)


def report(planned_ns: int, step_id: int) -> ScheduleReport:
    return ScheduleReport(planned_ns, FACTS, (ChunkRow(1, 0, 0, 16, 32, 40),), step_id=step_id)


def end(committed_ns: int, step_id: int) -> StepReplies:
    final = UserReply(3, 0, "stop", token_ids=pack_int32([9]))
    return StepReplies(step_id, b"", b"", pack_int32([5, 6]), ("a",), (final,), committed_ns=committed_ns)


def test_a_step_lasts_from_its_plan_or_the_end_before_it_to_its_end():
    plans = [StepPlan(100, 1, 16, 16), StepPlan(500, 4, 8, 10)]
    ends = [StepEnd(200, 1, 1), StepEnd(300, 2, 3), StepEnd(400, 3, 3), StepEnd(650, 4, 3)]
    assert list(join_steps(plans, ends).values()) == [
        StepSpan(100, 200, 16, 0),
        StepSpan(200, 300, 0, 3),
        StepSpan(300, 400, 0, 3),
        StepSpan(500, 650, 8, 2),
    ]


def test_what_several_frontends_received_is_one_step():
    plan = StepPlan(100, 1, 16, 20)
    steps = join_steps([plan, plan], [StepEnd(200, 1, 2), StepEnd(200, 1, 2), StepEnd(260, 2, 1), StepEnd(260, 2, 4)])
    assert list(steps.values()) == [StepSpan(100, 200, 16, 4), StepSpan(200, 260, 0, 5)]


def test_a_chunk_that_gives_no_token_ends_with_the_next_plan_and_the_last_one_runs():
    steps = join_steps([StepPlan(100, 1, 512, 512), StepPlan(180, 2, 512, 512)], [])
    assert list(steps.values()) == [StepSpan(100, 180, 512, 0), StepSpan(180, None, 512, 0)]
    later = join_steps([StepPlan(100, 1, 512, 512), StepPlan(180, 2, 512, 512)], [StepEnd(250, 2, 1)])
    assert later["180"] == StepSpan(180, 250, 512, 0), "it has kept its key"


def test_a_step_that_runs_next_to_the_one_before_begins_at_its_end():
    steps = join_steps([StepPlan(100, 1, 8, 8), StepPlan(150, 2, 8, 8)], [StepEnd(200, 1, 1), StepEnd(290, 2, 1)])
    assert list(steps.values()) == [StepSpan(100, 200, 8, 0), StepSpan(200, 290, 8, 0)]


def test_nothing_is_made_up_at_the_edges_of_what_is_known():
    old_plan = StepPlan(100, 1, 16, 16)
    assert join_steps([], []) == {}
    assert join_steps([], [StepEnd(900, 7, 1)]) == {}, "its begin is not known"
    assert list(join_steps([old_plan], [StepEnd(900, 7, 1), StepEnd(950, 8, 1)]).values()) == [StepSpan(900, 950, 0, 1)]


def test_ids_begin_anew_with_a_scheduler():
    steps = join_steps([StepPlan(100, 1, 16, 16), StepPlan(900, 1, 4, 4)], [StepEnd(200, 1, 1), StepEnd(950, 1, 1)])
    assert steps["900"] == StepSpan(900, 950, 4, 0)


def test_steps_are_recorded_only_for_a_while_after_someone_has_asked(monkeypatch: pytest.MonkeyPatch):
    clock: list[int] = [time.monotonic_ns()]
    monkeypatch.setattr(recent_steps.time, "monotonic_ns", lambda: clock[0])
    steps: Any = RecentSteps()
    steps.record_plan(report(clock[0], 1))
    steps.record_end(end(clock[0], 1))
    assert steps.watch() == ((), ())
    steps.record_plan(report(clock[0], 2))
    steps.record_end(end(clock[0] + 5, 2))
    steps.record_end(end(0, 2))  # of no step: an abort in the queue
    assert steps.watch() == ((StepPlan(clock[0], 2, 16, 19),), (StepEnd(clock[0] + 5, 2, 3),))
    clock[0] += 2 * recent_steps.WINDOW_NS
    steps.record_end(end(clock[0], 3))
    assert steps.watch() == ((), ())


def test_steps_of_two_engines_are_laid_out_apart():
    """Their numbers are the same, and they run at the same time."""
    plans = [StepPlan(100, 1, 16, 16), StepPlan(110, 1, 8, 8, engine=2)]
    ends = [StepEnd(200, 1, 1), StepEnd(150, 1, 1, engine=2)]
    assert join_steps(plans, ends) == {"100": StepSpan(100, 200, 16, 0), "2.110": StepSpan(110, 150, 8, 0, engine=2)}
