import time

import msgspec
import pytest

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from messages.control.processes import ProcessState, ProcessStatus, ProcessTable
from tests.frontend.frontend_run import table


def test_a_view_is_ready_when_every_process_of_the_ring_is():
    view = ProcessView()
    assert not view.is_ready
    view.update(table(frontend="starting", scheduler="busy"))
    assert view.is_ready
    view.update(ProcessTable(table().processes[:3]))
    assert not view.is_ready


@pytest.mark.parametrize("state", ["starting", "hung", "dead"])
def test_has_started_stays_true(state):
    view = ProcessView()
    view.update(table(tokenizer=state))
    assert not view.has_started
    view.update(table())
    view.update(table(tokenizer=state))
    assert view.has_started
    assert not view.is_ready


def test_the_refusal_reports_who_is_not_ready_and_what_it_does():
    view = ProcessView()
    loading = ProcessStatus("scheduler", "starting", phase="loading weights", fraction=0.4)
    view.update(ProcessTable((ProcessStatus("tokenizer", "ready"), loading)))
    with pytest.raises(UnavailableError) as error:
        view.check_ready()
    assert error.value.info.message == (
        "the server is not ready: scheduler is starting (loading weights 40%), detokenizer has not started"
    )


def test_health_shows_ages_as_of_now():
    now_ns = time.monotonic_ns()
    status = ProcessStatus(
        "scheduler", "hung", 12, 2, "warm-up", 0.5, now_ns - 40_000_000_000, now_ns - 41_000_000_000, {"rows": 3}
    )
    view = ProcessView()
    view.update(ProcessTable((status,)))
    shown = view.health()["scheduler"]
    assert shown.beat_age_s == pytest.approx(40, abs=5)
    assert shown.busy_s == pytest.approx(41, abs=5)
    assert (shown.state, shown.pid, shown.incarnation, shown.gauges) == ("hung", 12, 2, {"rows": 3})
    assert (shown.phase, shown.fraction) == (None, None)


def test_health_shows_what_a_process_does_without():
    view = ProcessView()
    view.update(ProcessTable((ProcessStatus("scheduler", "ready", degraded="no CUDA graphs: out of memory"),)))
    assert view.health()["scheduler"].degraded == "no CUDA graphs: out of memory"
    view.update(ProcessTable((ProcessStatus("scheduler", "ready"),)))
    assert b"degraded" not in msgspec.json.encode(view.health()["scheduler"])


def test_health_shows_the_phase_of_a_start():
    view = ProcessView()
    view.update(ProcessTable((ProcessStatus("scheduler", "starting", phase="loading weights", fraction=0.25),)))
    shown = view.health()["scheduler"]
    assert (shown.phase, shown.fraction, shown.beat_age_s) == ("loading weights", 0.25, None)


def test_health_shows_a_restart():
    view = ProcessView()
    view.update(table())
    view.update(ProcessTable((ProcessStatus("scheduler", "restarting", incarnation=2, num_restarts=1),)))
    shown = view.health()["scheduler"]
    assert (shown.state, shown.incarnation, shown.num_restarts) == ("restarting", 2, 1)
    with pytest.raises(UnavailableError, match="scheduler is restarting"):
        view.check_ready()


@pytest.mark.parametrize(
    ("status", "is_recovering"),
    [
        (ProcessStatus("scheduler", "restarting"), True),
        (ProcessStatus("scheduler", "starting", incarnation=2), True),
        (ProcessStatus("scheduler", "hung", is_killed=True), True),
        (ProcessStatus("scheduler", "hung"), False),
        (ProcessStatus("scheduler", "dead"), False),
    ],
)
def test_who_may_wait_knows_whether_a_process_comes_back(status: ProcessStatus, is_recovering: bool):
    view = ProcessView(has_started=True)
    others = [other for other in table().processes if other.name != "scheduler"]
    view.update(ProcessTable((*others, status)))
    assert view.is_recovering is is_recovering
    with pytest.raises(UnavailableError):
        view.check_ready()
    if is_recovering:
        view.check_ready(hold_s=1.0)
    else:
        with pytest.raises(UnavailableError):
            view.check_ready(hold_s=1.0)


def test_nothing_waits_for_the_first_start():
    view = ProcessView()
    view.update(table(scheduler="starting"))
    assert not view.is_recovering


def test_the_other_fronts_are_those_that_hold_requests():
    view = ProcessView()
    others: list[tuple[str, ProcessState]] = [
        ("frontend", "ready"),
        ("frontend-2", "restarting"),
        ("frontend-3", "hung"),
        ("frontend-3.next", "standby"),
        ("frontend-4.old", "busy"),
        ("frontend-5", "starting"),
    ]
    fronts = [ProcessStatus(name, state, uid_block=block) for block, (name, state) in enumerate(others, start=1)]
    view.update(ProcessTable((*fronts, ProcessStatus("scheduler", "ready"))))
    assert [status.name for status in view.other_fronts(1)] == ["frontend-3", "frontend-4.old"]
    assert (view.name_of_front(5), view.name_of_front(9)) == ("frontend-4.old", None)
