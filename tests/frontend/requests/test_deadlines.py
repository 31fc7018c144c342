"""Requests that reach their deadline, with a ring that answers and one that does not."""

import asyncio
import time

from frontend.requests import deadlines
from frontend.requests.deadlines import Deadlines
from frontend.requests.generation import Generation
from messages.config.server import HttpConfig
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, final, make_config, step, table, wait_until

MAX_TRIES = 5


def make() -> Generation:
    return Generation(TokenizeMsg(5, 0, "a", b"", SamplingParams(8), Stamps()), "id")


def test_first_the_ring_is_asked_and_then_it_is_ended_here():
    events: list[str] = []

    async def run() -> None:
        done = asyncio.Event()
        watch = Deadlines(lambda _: events.append("abort"), lambda _: (events.append("end"), done.set()))
        watch.watch(make(), time.monotonic() - 1.0)
        assert len(watch) == 1
        async with asyncio.timeout(deadlines.ANSWER_TIMEOUT_S + 10):
            await done.wait()
        assert len(watch) == 0

    asyncio.run(run())
    assert events == ["abort", "end"]


def test_a_request_that_has_ended_is_left_alone():
    events: list[Generation] = []

    async def run() -> None:
        watch = Deadlines(events.append, events.append)
        early, far = make(), make()
        watch.watch(early, time.monotonic())
        watch.forget(early)
        watch.forget(early)
        watch.watch(far, 1e300)
        await asyncio.sleep(0)
        assert len(watch) == 1
        watch.forget(far)

    asyncio.run(run())
    assert events == []


def test_the_ring_ends_a_request_that_is_over_its_deadline(server: FrontendRun):
    for _ in range(MAX_TRIES):  # this process may be stopped for longer than the frontend waits for the ring
        with server.call({"timeout_s": 0.1, "stream": False}) as whole:
            message = server.take_request()
            server.send(step([(message, 1, "a")]))
            abort = server.take_abort()
            assert (abort.uid, abort.reason) == (message.uid, "timeout")
            server.send(step(finals=(final(message, "b", (2,), finish_reason="timeout"),)))
            assert whole.response.status == 200
            reply = whole.json()
        if reply["text"] == "ab":
            break
    assert (reply["text"], reply["token_ids"], reply["finish_reason"]) == ("ab", [1, 2], "timeout")


def test_a_mute_ring_does_not_keep_the_client_waiting(server: FrontendRun):
    with server.call({"timeout_s": 0.1}) as streamed, server.call({"timeout_s": 0.1, "stream": False}) as whole:
        messages = [server.take_request(), server.take_request()]
        server.send(step([(message, 1, "a") for message in messages]))
        assert {server.take_abort().reason, server.take_abort().reason} == {"timeout"}
        events = streamed.events()
        reply = whole.json()
        assert server.gauge("requests") == 2
        assert server.gauge("abandoned_requests") == 2
        server.send(step([(message, 2, "late") for message in messages]))
        server.send(step(finals=tuple(final(message, finish_reason="timeout") for message in messages)))
    assert "".join(event["text"] for event in events) == "a"
    assert (events[-1]["finish_reason"], events[-1]["usage"]["completion_tokens"]) == ("timeout", 1)
    assert (reply["text"], reply["finish_reason"]) == ("a", "timeout")
    wait_until(lambda: server.gauge("requests") == 0)
    assert server.gauge("deadlines") == 0


def test_a_request_that_ended_while_a_process_was_dead_ends_in_the_ring_too():
    with FrontendRun() as run, run.call({"timeout_s": 0.2, "stream": False}) as call:
        message = run.take_request()
        run.send(step([(message, 1, "a")]))
        run.show(table(scheduler="dead"))
        assert run.take_abort().reason == "timeout"
        assert call.json()["finish_reason"] == "timeout"
        run.replace("scheduler", 2)
        again = run.take_request()
        assert (again.uid, again.attempt, again.sampling_params.max_tokens) == (message.uid, 1, 1)
        run.send(step(finals=(final(again),)))
        wait_until(lambda: run.gauge("requests") == 0)


def test_the_server_has_a_deadline_for_requests_without_one():
    config = make_config(HttpConfig(port=0, request_timeout_s=0.1))
    with FrontendRun(config) as run, run.call({"stream": False}) as call:
        message = run.take_request()
        assert run.take_abort().reason == "timeout"
        run.send(step(finals=(final(message, finish_reason="timeout"),)))
        assert call.json()["finish_reason"] == "timeout"


def test_an_abort_by_api_returns_the_partial_text(server: FrontendRun):
    with server.call({"stream": False, "request_id": "mine"}) as whole:
        message = server.take_request()
        server.send(step([(message, 1, "a")]))
        assert server.client.post("/abort_request", json={"request_id": "mine"}).json()["aborted"] == [message.uid]
        assert server.take_abort().reason == "abort"
        server.send(step(finals=(final(message, "b", finish_reason="abort"),)))
        reply = whole.json()
    assert (whole.response.status, reply["text"], reply["finish_reason"]) == (200, "ab", "abort")


def test_an_abort_by_request_id_ends_all_choices(server: FrontendRun):
    asked = server.ask("/v1/completions", {"prompt": "hi", "n": 3, "request_id": "many"})
    messages = [server.take_request() for _ in range(3)]
    aborted = server.client.post("/abort_request", json={"request_id": "many"}).json()["aborted"]
    assert sorted(aborted) == [message.uid for message in messages]
    assert sorted(server.take_abort().uid for _ in range(3)) == sorted(aborted)
    server.send(step(finals=tuple(final(message, "x", (1,), finish_reason="abort") for message in messages)))
    choices = asked.response().json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort"] * 3
