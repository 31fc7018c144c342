"""Which frontend may run its suspects: never two at once, and none before all know of the latest death."""

import pytest

from frontend.links.processes import ProcessView
from frontend.recovery.quarantine import may_release_suspect
from messages.control.processes import FrontendReport, ProcessState, ProcessStatus, ProcessTable
from tests.frontend.frontend_run import FrontendRun, final, table_after, wait_until

SCHEDULER = 3


def front(block: int, suspects: int, seen: int = SCHEDULER, state: ProcessState = "ready") -> ProcessStatus:
    report = FrontendReport(num_suspects=suspects, schedulers_seen={"scheduler": seen}) if seen else None
    return ProcessStatus(f"frontend-{block}", state, uid_block=block, frontend=report)


def turns(*fronts: ProcessStatus) -> list[int]:
    """Returns the blocks of the frontends that consider it their turn."""
    processes = ProcessView()
    others = [status for status in table_after({"scheduler": SCHEDULER}).processes if status.name != "frontend"]
    processes.update(ProcessTable((*fronts, *others)))
    return [status.uid_block for status in fronts if may_release_suspect(processes, status.uid_block)]


def test_a_frontend_that_is_alone_need_not_wait():
    assert turns(front(1, 5)) == [1]
    assert turns(front(1, 5, seen=2)) == [1]


@pytest.mark.parametrize(
    ("suspects", "expected"), [((2, 1, 4), [1]), ((0, 1, 4), [1, 2]), ((0, 0, 4), [1, 2, 3]), ((0, 0, 0), [1, 2, 3])]
)
def test_the_first_of_those_with_suspects_goes(suspects: tuple[int, int, int], expected: list[int]):
    assert turns(*(front(block, count) for block, count in enumerate(suspects, 1))) == expected
    assert sum(bool(suspects[block - 1]) for block in expected) <= 1


@pytest.mark.parametrize("seen", [SCHEDULER - 1, 0])
def test_all_wait_for_one_that_has_not_counted_the_latest_death(seen: int):
    assert turns(front(1, 2), front(2, 1), front(5, 0, seen=seen)) == []


@pytest.mark.parametrize("state", ["starting", "dead", "restarting", "standby"])
def test_no_one_waits_for_one_that_has_no_requests(state: ProcessState):
    assert turns(front(2, 1), front(1, 3, seen=0, state=state))[:1] == [2]


def show(run: FrontendRun, scheduler: int, suspects: int, seen: int) -> None:
    """Shows the table with another frontend of an earlier block, and waits until it has been followed."""
    gauges = {"suspects": float(suspects), "seen": float(seen)}
    report = FrontendReport(num_suspects=suspects, schedulers_seen={"scheduler": seen})
    other = ProcessStatus("frontend-2", "ready", pid=2, uid_block=1, gauges=gauges, frontend=report)
    processes = (*table_after({"scheduler": scheduler}).processes, other)
    run.launcher.send("frontend", ProcessTable(processes))

    def is_shown() -> bool:
        shown = run.health()["processes"]
        return (shown.get("scheduler", {}).get("incarnation"), shown.get("frontend-2", {}).get("gauges")) == (
            scheduler,
            gauges,
        )

    wait_until(is_shown)


def test_a_suspect_waits_for_the_suspects_of_another_frontend():
    with FrontendRun(is_ready=False, incarnation=2) as run:
        show(run, scheduler=1, suspects=0, seen=1)
        with run.call({"stream": False}) as call:
            assert run.take_request().attempt == 0
            show(run, scheduler=2, suspects=0, seen=1)
            assert run.take_request().attempt == 1
            for suspects, seen in ((0, 2), (1, 3), (2, 3)):
                show(run, scheduler=3, suspects=suspects, seen=seen)
                assert run.arrived() == []
            assert run.gauge("held_requests") == 1
            show(run, scheduler=3, suspects=0, seen=3)
            again = run.take_request()
            assert again.attempt == 2
            run.send(final(again, "ok", (1,)))
            assert call.json()["text"] == "ok"
