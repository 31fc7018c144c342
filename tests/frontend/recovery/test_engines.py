"""Requests at one of several schedulers that dies, hangs, leaves or returns, in a ring played by the test."""

from collections.abc import Iterator

import pytest

from messages.columns import unpack_int32
from messages.ring.requests import AbortMsg, TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, final, step, table, table_after, wait_until, with_engine


@pytest.fixture
def run() -> Iterator[FrontendRun]:
    """A frontend that knows two engines; afterwards it must soon hold nothing."""
    with FrontendRun() as run:
        run.show(with_engine(table()))
        yield run
        wait_until(lambda: run.gauge("requests") == 0)
        assert run.gauge("held_requests") == run.gauge("placed_requests") == 0
        assert not run.arrived()
        assert "Traceback" not in run.launcher.log_text("frontend")


def end(run: FrontendRun, *messages: TokenizeMsg) -> None:
    run.send(step(finals=tuple(final(message) for message in messages)))


@pytest.mark.parametrize("state", ["restarting", "hung"])
def test_what_an_engine_had_continues_at_the_other_at_once_and_nothing_else_moves(run: FrontendRun, state: str):
    with run.call() as first_call, run.call() as second_call:
        messages = sorted((run.take_request() for _ in range(2)), key=lambda message: message.engine)
        assert [message.engine for message in messages] == [1, 2]
        stays, moves = messages
        run.send(step([(stays, 1, "a"), (moves, 2, "b")]))
        for call in (first_call, second_call):
            call.next_data()
        run.show(with_engine(table(), state))  # type: ignore[arg-type]
        assert run.take_abort() == AbortMsg(moves.uid, 0, engine=2), "it may be on its way to a successor"
        again = run.take_request()
        assert (again.uid, again.attempt, again.engine) == (moves.uid, 1, 1)
        assert unpack_int32(again.output_ids).tolist() == [2]
        run.show(with_engine(table(), incarnation=2))
        assert not run.arrived()
        end(run, stays, again)
        assert [call.events()[0]["finish_reason"] for call in (first_call, second_call)] == ["length", "length"]


def test_an_engine_that_is_to_leave_gives_its_requests_away_and_gets_no_more(run: FrontendRun):
    with run.call() as call, run.call() as other_call, run.call() as third_call:
        messages = [run.take_request() for _ in range(3)]
        leaving = [message for message in messages if message.engine == 2]
        run.show(with_engine(table(), is_leaving=True))
        moved: list[TokenizeMsg] = []
        for message in leaving:
            assert run.take_abort() == AbortMsg(message.uid, 0, engine=2)
            moved.append(run.take_request())
        assert leaving
        assert {message.engine for message in moved} == {1}
        run.show(with_engine(table(), is_leaving=True))
        end(run, *(message for message in messages if message.engine == 1), *moved)
        for each in (call, other_call, third_call):
            each.events()
    run.round_trip()


def test_while_all_are_away_requests_wait_for_the_first_to_come_back(run: FrontendRun):
    with run.call() as call:
        message = run.take_request()
        run.show(with_engine(table(scheduler="restarting"), "restarting"))
        assert not run.arrived()
        run.show(with_engine(table(scheduler="restarting"), incarnation=2))
        if message.engine == 1:
            assert run.take_abort() == AbortMsg(message.uid, 0, engine=1)
        again = run.take_request()
        assert (again.attempt, again.engine) == (1, 2)
        run.show(with_engine(table_after({"scheduler": 2}), incarnation=2))
        assert not run.arrived()
        end(run, again)
        call.events()


def test_an_abort_goes_to_the_engine_of_the_request_and_the_list_names_it(run: FrontendRun):
    calls = [run.call(), run.call()]
    messages = [run.take_request() for _ in calls]
    shown = run.client.get("/requests").json()["requests"]
    assert {line["uid"]: line["engine"] for line in shown} == {message.uid: message.engine for message in messages}
    for call in calls:
        call.leave()
    aborts = [run.take_abort() for _ in calls]
    assert {abort.uid: abort.engine for abort in aborts} == {message.uid: message.engine for message in messages}
    end(run, *messages)


def test_a_process_that_is_away_is_the_reason_only_for_requests_of_its_engine(run: FrontendRun):
    with run.call() as call:
        message = run.take_request()
        state = {1: "scheduler-2", 2: "scheduler"}
        processes = with_engine(table()) if message.engine == 2 else with_engine(table(), "restarting")
        if message.engine == 2:
            processes = with_engine(table(scheduler="restarting"))
        run.show(processes)
        (line,) = run.client.get("/requests").json()["requests"]
        assert state[message.engine] not in str(line["waits"])
        assert run.health()["status"] == "ready"
        end(run, message)
        call.events()
