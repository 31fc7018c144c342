"""The place in the queue, in comments of streams: when it is shown, how often, and that no client has to know it."""

import json
import time
from typing import Any

import msgspec
import pytest

from messages.ring.timeline import ChunkRow, QueueFacts, ScheduleReport, WaitingRow
from tests.frontend.frontend_run import Call, FrontendRun, final, table

FACTS = QueueFacts("rows", 9, 7, 8, 40, 512, 3, 40, 0, 0, 4.0)
CHAT = {"messages": [{"role": "user", "content": "hi"}], "prompt": None, "max_tokens": 5}
SHOWN = {"stream": True, "stream_options": {"include_progress": True}}

PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {}),
    ("/v1/completions", SHOWN),
    ("/v1/chat/completions", {**CHAT, **SHOWN}),
    ("/v1/responses", {**SHOWN, "input": "hi", "prompt": None}),
    ("/v1/messages", {**CHAT, **SHOWN}),
]


def report(run: FrontendRun, rows: list[WaitingRow] | None = None, rate: float = 4.0, **more: Any) -> None:
    facts = msgspec.structs.replace(FACTS, admitted_per_s=rate)
    run.send(ScheduleReport(time.monotonic_ns(), facts, waiting=tuple(rows or ()), **more))


def next_place(call: Call) -> dict[str, Any]:
    while not (event := call.next_event()).startswith(": progress "):
        assert event, "the stream ended without a place"
    return json.loads(event.removeprefix(": progress "))


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_a_stream_shows_the_place_of_a_waiting_request(server: FrontendRun, path: str, body: dict[str, Any]):
    with server.call(body, path=path) as call:
        message = server.take_request()
        report(server, [WaitingRow(message.uid, 0, 1, 7, 2)], rate=0.0)
        assert next_place(call) == {"position": 8, "tokens_ahead": None, "expected_s": None}
        report(server, [WaitingRow(message.uid, 0, 1, 3, 2, 1_200, 2)])
        place = next_place(call)
        assert (place["position"], place["tokens_ahead"]) == (4, 1_200)
        assert 0 <= place["expected_s"] <= 1
        report(server, chunks=(ChunkRow(message.uid, 0, 1, 0, 3, 3),))
        server.send(final(message, "ok", (1,)))
        rest = call.response.read().decode()
        assert "ok" in rest
        assert ": progress" not in rest


@pytest.mark.parametrize(("path", "body"), PATHS[1:])
def test_it_is_shown_only_on_request(server: FrontendRun, path: str, body: dict[str, Any]):
    with server.call({**body, "stream_options": None}, path=path) as call:
        message = server.take_request()
        report(server, [WaitingRow(message.uid, 0, 1, 7, 2)])
        time.sleep(1.5)
        report(server, [WaitingRow(message.uid, 0, 1, 6, 2)])
        server.send(final(message, "ok", (1,)))
        assert ": progress" not in call.response.read().decode()


def test_it_is_shown_once_a_second_and_only_if_it_has_changed(server: FrontendRun):
    with server.call() as call:
        message = server.take_request()
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + 2.5:
            report(server, [WaitingRow(message.uid, 0, 1, int(100 - 10 * (time.monotonic() - begin_s)), 2)])
            time.sleep(0.02)
        report(server, [WaitingRow(message.uid, 0, 1, 5, 2)], rate=0.0)
        time.sleep(2.5)
        server.send(final(message, "ok", (1,)))
        places = [line for line in call.response.read().decode().splitlines() if line.startswith(": progress")]
        assert 2 <= len(places) <= time.monotonic() - begin_s
        assert len(set(places)) == len(places)


def test_several_choices_show_the_best_place_until_one_has_a_row(server: FrontendRun):
    with server.call({**SHOWN, "n": 2}, path="/v1/completions") as call:
        first, second = server.take_request(), server.take_request()
        report(server, [WaitingRow(first.uid, 0, 1, 7, 2), WaitingRow(second.uid, 0, 1, 8, 2)])
        assert next_place(call)["position"] == 8
        report(server, [WaitingRow(second.uid, 0, 1, 3, 2)], chunks=(ChunkRow(first.uid, 0, 1, 0, 3, 3),))
        time.sleep(1.2)
        server.send(final(first, "ok", (1,)))
        server.send(final(second, "ok", (1,)))
        assert ": progress" not in call.response.read().decode()


def test_a_value_that_is_no_switch_is_refused(server: FrontendRun):
    body = {"prompt": "hi", "stream": True, "stream_options": {"include_progress": "yes"}}
    reply = server.client.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert "include_progress" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("num_clients", "text"), [(1, "1 client is"), (3, "3 clients are")])
def test_the_reason_of_a_request_that_waits_for_its_share(server: FrontendRun, num_clients: int, text: str):
    server.show(table(-1_000.0))  # no process is taken for silent
    with server.call() as call:
        message = server.take_request()
        report(server, [WaitingRow(message.uid, 0, time.monotonic_ns(), 7, 2, 1_200, num_clients)])
        next_place(call)
        (choice,) = server.client.get(f"/requests/{message.uid}").json()["choices"]
        assert choice["waits"]["reason"] == "share"
        assert choice["waits"]["text"].startswith(f"waits for its share: {text} before it; all 8 rows are taken")
        server.send(final(message, "ok", (1,)))
        call.events()
