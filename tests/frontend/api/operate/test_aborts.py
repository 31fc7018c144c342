"""`POST /abort_request` and `GET /load` with several frontends: both cover the requests of all."""

from collections.abc import Iterator

import pytest

from frontend.links.peers import ASK_TIMEOUT_S
from messages.config.server import RunConfig
from messages.ring.peers import AbortedOpen, AbortOpen, CountOpen, OpenCount
from messages.ring.requests import TokenizeMsg
from tests.frontend.frontend_run import TIMEOUT_S, Asked, Call, FrontendRun, final, make_config, wait_until
from tests.frontend.other_frontend import OtherFrontend


@pytest.fixture(scope="module")
def run() -> Iterator[FrontendRun]:
    with FrontendRun(make_config(run=RunConfig(frontend_workers=2))) as run:
        yield run


@pytest.fixture(scope="module")
def other(run: FrontendRun) -> OtherFrontend:
    return OtherFrontend(run)


def begin(run: FrontendRun, request_id: str) -> tuple[Call, TokenizeMsg]:
    call = run.call({"stream": False, "request_id": request_id})
    return call, run.take_request()


def end(run: FrontendRun, call: Call, message: TokenizeMsg) -> None:
    run.send(final(message, finish_reason="abort"))
    assert call.json()["finish_reason"] == "abort"
    call.leave()


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ({"request_id": "cmpl-mine"}, AbortOpen(request_ids=("cmpl-mine", "mine"))),
        ({"all": True}, AbortOpen(is_all=True)),
    ],
)
def test_an_abort_is_for_the_requests_of_all_frontends(
    run: FrontendRun, other: OtherFrontend, body: dict[str, object], command: AbortOpen
):
    call, message = begin(run, "mine")
    asked = run.ask("/abort_request", body)
    assert run.take_abort().uid == message.uid
    ask = other.take_question()
    assert ask.question == command
    other.answer(ask, AbortedOpen((7, 8)))
    assert asked.response().json() == {"aborted": [message.uid, 7, 8], "frontends_missing": 0}
    end(run, call, message)


def test_an_abort_by_uid_finds_the_frontend_that_has_it(run: FrontendRun, other: OtherFrontend):
    asked = run.ask("/abort_request", {"uid": 12345})
    ask = other.take_question()
    assert ask.question == AbortOpen(uids=(12345,))
    other.answer(ask, AbortedOpen((12345,)))
    assert asked.response().json()["aborted"] == [12345]


def test_what_another_frontend_was_asked_to_abort_ends_here(run: FrontendRun, other: OtherFrontend):
    call, message = begin(run, "a")
    second, second_message = begin(run, "b")
    assert other.ask(AbortOpen(request_ids=("c",)), AbortedOpen).uids == ()
    assert other.ask(AbortOpen(request_ids=("a",)), AbortedOpen).uids == (message.uid,)
    assert run.take_abort().uid == message.uid
    end(run, call, message)
    assert other.ask(AbortOpen(uids=(message.uid, second_message.uid)), AbortedOpen).uids == (second_message.uid,)
    assert run.take_abort().uid == second_message.uid
    end(run, second, second_message)


def test_a_frontend_that_does_not_answer_is_named_as_missing(run: FrontendRun, other: OtherFrontend):
    for path, method in (("/abort_request", "POST"), ("/load", "GET")):
        asked = Asked(lambda path=path, method=method: run.client.request(method, path, json={"all": True}))
        other.take_question()
        response = asked.response()
        assert response.status_code == 200
        assert response.json()["frontends_missing"] == 1
        assert ASK_TIMEOUT_S <= response.elapsed.total_seconds() < TIMEOUT_S


def test_the_load_is_that_of_all_frontends(run: FrontendRun, other: OtherFrontend):
    call, message = begin(run, "mine")
    asked = Asked(lambda: run.client.get("/load"))
    ask = other.take_question()
    assert ask.question == CountOpen()
    other.answer(ask, OpenCount(40))
    assert asked.response().json()["server_load"] == 41
    assert other.ask(CountOpen(), OpenCount).num_requests == 1
    run.send(final(message, finish_reason="abort"))
    call.json()
    call.leave()
    wait_until(lambda: run.gauge("requests") == 0)


def test_a_frontend_that_dies_while_it_is_asked_is_missing_and_then_is_not_asked(
    run: FrontendRun, other: OtherFrontend
):
    """Must run last: a frontend that is gone does not return under its block of uids."""
    asked = run.ask("/abort_request", {"all": True})
    other.take_question()
    other.show("restarting")
    run.take_drop_before()
    assert asked.response().json() == {"aborted": [], "frontends_missing": 1}
    assert run.client.get("/load").json()["frontends_missing"] == 0
