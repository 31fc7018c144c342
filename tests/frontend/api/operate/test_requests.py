"""`GET /requests` and `/requests/{id}`: every stage and reason, with hung processes and several frontends."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from messages.config.server import HttpConfig, RunConfig
from messages.ring.peers import FindRequests, FoundRequest, FoundRequests
from messages.ring.replies import PrefilledRow, Usage
from messages.ring.requests import Stamps, TokenizeMsg
from messages.ring.timeline import (
    ChunkRow,
    DelayedRow,
    PausedRow,
    PreemptedRow,
    QueueFacts,
    ScheduleReport,
    Tokenized,
    TokenizedRow,
    WaitingRow,
)
from tests.frontend.frontend_run import (
    Asked,
    Call,
    FrontendRun,
    final,
    make_config,
    step,
    table,
    table_after,
    wait_until,
)
from tests.frontend.other_frontend import OtherFrontend

FACTS = QueueFacts("pages", 9, 7, 256, 40, 512, 3, 40, 12, 35, 5.0)


BEATING = -1000.0
"""An age of beats at which no process is taken for silent, however slow the test is."""


@pytest.fixture
def server(server: FrontendRun) -> Iterator[FrontendRun]:
    """The server of all tests, for which every process keeps beating."""
    server.show(table(BEATING))
    yield server
    server.show(table())


class Watched:
    """An open request, and what the server shows of it."""

    def __init__(self, run: FrontendRun, body: dict[str, Any] | None = None):
        self.run = run
        self.call: Call = run.call(body)
        self.message = run.take_request()

    @property
    def uid(self) -> int:
        return self.message.uid

    def shown(self) -> dict[str, Any]:
        reply = self.run.client.get(f"/requests/{self.uid}")
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        return choice

    def wait_for(self, stage: str) -> dict[str, Any]:
        wait_until(lambda: self.shown()["stage"] == stage)
        return self.shown()

    def report(self, now_ns: int = 0, facts: QueueFacts = FACTS, **rows: Any) -> None:
        self.run.send(
            ScheduleReport(now_ns or time.monotonic_ns(), facts, **{name: (row,) for name, row in rows.items()})
        )

    def tokenized(self) -> None:
        now_ns = time.monotonic_ns()
        self.run.send(Tokenized((TokenizedRow(self.uid, 0, now_ns - 1000, now_ns, 17),)))

    def prefilled(self, *, attempt: int = 0) -> None:
        message = msgspec.structs.replace(self.message, attempt=attempt)
        prefilled = (PrefilledRow(self.uid, attempt, Usage(17, 4, 1)),)
        tokens = step([(message, 5, "a")], prefilled=prefilled)
        self.run.send(msgspec.structs.replace(tokens, committed_ns=time.monotonic_ns()))

    def end(self) -> None:
        self.run.send(final(self.message, finish_reason="stop", stamps=stamps_of(self.message)))
        self.call.events()
        self.call.leave()


def stamps_of(message: TokenizeMsg) -> Stamps:
    """The stamps of a request that has just passed through the ring."""
    now_ns = time.monotonic_ns()
    return msgspec.structs.replace(message.stamps, finished_ns=now_ns - 2000, detokenized_ns=now_ns - 1000)


def stages_of(shown: dict[str, Any]) -> list[str]:
    return [stage["stage"] for stage in shown["stages"]]


def check_sums(shown: dict[str, Any]) -> None:
    """The stages add up to the total, within 1 ms for rounding."""
    assert abs(sum(stage["duration_ms"] for stage in shown["stages"]) - shown["total_ms"]) < 1
    assert all(stage["duration_ms"] >= 0 for stage in shown["stages"])


def test_a_request_passes_its_stages_and_stays_known(server: FrontendRun):
    watched = Watched(server)
    shown = watched.shown()
    assert (shown["stage"], shown["state"]) == ("tokenizer_queue", "waiting")
    assert shown["waits"]["reason"] == "tokenizer"
    watched.tokenized()
    shown = watched.wait_for("scheduler_inbox")
    assert shown["prompt_tokens"] == 17
    assert shown["waits"] == {"reason": "scheduler", "text": "the scheduler has not received it yet"}
    queued_ns = time.monotonic_ns()
    watched.report(waiting=WaitingRow(watched.uid, 0, queued_ns, 7, 12))
    shown = watched.wait_for("queue")
    waits = shown["waits"]
    assert waits["reason"] == "pages"
    assert (waits["num_before"], waits["needed_pages"]) == (7, 12)
    assert (waits["free_pages"], waits["evictable_pages"]) == (3, 40)
    assert waits["text"].startswith(
        "needs up to 12 pages, and the first request in the queue 12; 3 are free and 40 could be evicted, of which 35 "
        "are reserved for the 7 running rows; 7 requests are ahead of it; at the measured rate about 1."
    )
    watched.report(waiting=WaitingRow(watched.uid, 0, queued_ns, 0, 12, lacks="encoding"))
    shown = watched.wait_for("encode")
    assert (shown["state"], shown["waits"]["reason"]) == ("waiting", "encoding")
    assert "its images are being encoded" in shown["waits"]["text"]
    watched.report(chunks=ChunkRow(watched.uid, 0, queued_ns, 0, 16, 17))
    shown = watched.wait_for("prefill")
    assert shown["waits"] is None
    assert shown["state"] == "running"
    assert [(chunk["start"], chunk["end"]) for chunk in shown["chunks"]] == [(0, 16)]
    watched.prefilled()
    shown = watched.wait_for("decode")
    assert (shown["cached_tokens"], shown["output_tokens"], len(shown["step_ends_ms"])) == (4, 1, 1)
    check_sums(shown)
    watched.end()
    wait_until(lambda: watched.shown()["state"] == "finished")
    shown = watched.shown()
    assert (shown["finish_reason"], shown["stage"], shown["waits"]) == ("stop", None, None)
    expected = ["accept", "tokenizer_queue", "tokenize", "scheduler_inbox", "queue", "encode", "prefill", "decode"]
    assert stages_of(shown) == [*expected, "detokenize", "deliver", "send"]
    check_sums(shown)


@pytest.mark.parametrize(
    ("row", "reason", "text"),
    [
        (DelayedRow(0, 0, 0), "tokens", "the step had no tokens left for its prompt: 40 of 512"),
        (DelayedRow(0, 0, 77), "same_page", "request 77 computes the next page that it needs"),
    ],
)
def test_a_prompt_in_work_that_has_no_chunk(server: FrontendRun, row: DelayedRow, reason: str, text: str):
    watched = Watched(server)
    watched.report(chunks=ChunkRow(watched.uid, 0, time.monotonic_ns(), 0, 8, 17))
    watched.wait_for("prefill")
    watched.report(delayed=msgspec.structs.replace(row, uid=watched.uid))
    wait_until(lambda: watched.shown()["waits"] is not None)
    waits = watched.shown()["waits"]
    assert waits["reason"] == reason
    assert waits["text"].startswith(text)
    watched.end()


@pytest.mark.parametrize(
    ("waits_for", "num_before", "text"),
    [
        ("rows", 0, "all 256 rows are taken (--max-num-seqs); it is next in the queue"),
        (
            "tokens",
            1,
            "the step has no tokens left: 40 of 512 (--max-num-batched-tokens) went to 7 running rows; 1 req",
        ),
        ("pages", 0, "needs 12 pages; 3 are free and 40 could be evicted"),
        ("drain", 2, "the scheduler finishes its running requests and is then replaced; 2 requests are ahead of it"),
        ("priority", 0, "it has the lowest priority, and there are requests of a higher one; it is next in the queue"),
    ],
)
def test_reasons_of_the_queue(server: FrontendRun, waits_for: Any, num_before: int, text: str):
    watched = Watched(server)
    facts = msgspec.structs.replace(FACTS, waits_for=waits_for, admitted_per_s=0.0)
    watched.report(facts=facts, waiting=WaitingRow(watched.uid, 0, time.monotonic_ns(), num_before, 5))
    waits = watched.wait_for("queue")["waits"]
    assert waits["reason"] == waits_for
    assert waits["text"].startswith(text)
    assert "estimated_s" not in waits
    watched.end()


def test_a_preempted_request_is_in_the_queue_again(server: FrontendRun):
    watched = Watched(server)
    watched.report(chunks=ChunkRow(watched.uid, 0, time.monotonic_ns(), 0, 17, 17))
    watched.prefilled()
    watched.wait_for("decode")
    now_ns = time.monotonic_ns()
    rows = {"preempted": PreemptedRow(watched.uid, 0, 5), "waiting": WaitingRow(watched.uid, 0, 1, 0, 2)}
    watched.report(now_ns, **rows)
    shown = watched.wait_for("preempted")
    assert shown["state"] == "waiting"
    assert shown["waits"]["text"].startswith("needs 12 pages")
    watched.end()


def test_a_paused_row_waits_and_decodes_again(server: FrontendRun):
    """A pause that is reported twice, as after an intermediate turn, counts once."""
    watched = Watched(server)
    watched.report(chunks=ChunkRow(watched.uid, 0, time.monotonic_ns(), 0, 17, 17))
    watched.prefilled()
    watched.wait_for("decode")
    for _ in range(2):
        watched.report(time.monotonic_ns(), paused=PausedRow(watched.uid, 0, is_paused=True))
    shown = watched.wait_for("preempted")
    assert (shown["state"], shown["waits"]["reason"]) == ("waiting", "priority")
    watched.report(time.monotonic_ns(), paused=PausedRow(watched.uid, 0, is_paused=False))
    shown = watched.wait_for("decode")
    assert (shown["state"], shown["waits"]) == ("running", None)
    assert stages_of(shown)[-3:] == ["decode", "preempted", "decode"]
    watched.end()


def test_reports_about_others_and_about_older_attempts_change_nothing(server: FrontendRun):
    watched = Watched(server)
    watched.report(waiting=WaitingRow(watched.uid, 3, time.monotonic_ns(), 0, 2))
    watched.report(chunks=ChunkRow(12345, 0, time.monotonic_ns(), 0, 2, 2))
    watched.run.send(Tokenized((TokenizedRow(watched.uid, 3, 1, 2, 9), TokenizedRow(54321, 0, 1, 2, 9))))
    watched.tokenized()
    assert stages_of(watched.wait_for("scheduler_inbox")) == [
        "accept",
        "tokenizer_queue",
        "tokenize",
        "scheduler_inbox",
    ]
    watched.end()


def test_a_process_that_gives_no_sign_is_named(server: FrontendRun):
    watched = Watched(server)
    watched.report(waiting=WaitingRow(watched.uid, 0, time.monotonic_ns(), 0, 2))
    watched.wait_for("queue")
    server.show(table(age_s=9.0))
    waits = watched.shown()["waits"]
    assert waits["reason"] == "process"
    silence = re.search(r"scheduler has been silent for (\d+)\.", waits["text"])
    assert silence is not None
    assert int(silence[1]) >= 9
    assert "needs 12 pages" in waits["text"], "what was heard before is still said"
    watched.end()


def test_the_list_is_filtered_and_bounded(server: FrontendRun):
    first, second = Watched(server, {"request_id": "one"}), Watched(server, {"request_id": "two", "priority": 3})
    first.tokenized()
    first.wait_for("scheduler_inbox")

    def ids(**query: Any) -> list[str]:
        return [line["request_id"] for line in server.client.get("/requests", params=query).json()["requests"]]

    assert ids(state="waiting") == ["one", "two"]
    assert ids(stage="tokenizer_queue") == ["two"]
    assert ids(state="running") == []
    assert ids(state="waiting", min_age_s=1000) == []
    assert ids(limit=1) == ["one"]
    first.end()
    second.end()
    wait_until(lambda: ids(state="finished", limit=2) == ["two", "one"])
    reply = server.client.get("/requests", params={"state": "finished", "limit": 1}).json()
    assert reply["num_found"] >= 2
    assert [line["priority"] for line in reply["requests"]] == [3]
    assert reply["scheduler_heard_s"] >= 0
    assert server.client.get("/requests/one").json()["choices"][0]["request_id"] == "one"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("state=lost", "state must be one of waiting, running, finished, got 'lost'"),
        ("stage=lost", "stage must be one of accept"),
        ("limit=0", "limit must be a number from 1 to 1000, got '0'"),
        ("limit=1.5", "limit must be a whole number, got '1.5'"),
        ("min_age_s=nan", "min_age_s must be a number from 0 to 1e+09, got 'nan'"),
        ("uid=3", "unknown parameter 'uid': send state, stage, min_age_s or limit"),
    ],
)
def test_a_query_that_cannot_be_is_refused(server: FrontendRun, query: str, message: str):
    reply = server.client.get(f"/requests?{query}")
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("name", ["nobody", "99", "9" * 40, "é"])
def test_an_unknown_request_is_a_404(server: FrontendRun, name: str):
    reply = server.client.get(f"/requests/{name}")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "request_not_found"


def test_the_choices_of_a_request_are_shown_together(server: FrontendRun):
    body = {"prompt": "hi", "n": 2, "request_id": "both"}
    with server.call(body, path="/v1/completions") as call:
        messages = [server.take_request(), server.take_request()]
        shown = server.client.get("/requests/cmpl-both").json()["choices"]
        assert [choice["uid"] for choice in shown] == [message.uid for message in messages]
        assert [choice["choice"] for choice in shown] == [0, 1]
        server.send(final(messages[0], "a", (1,)))
        wait_until(lambda: server.client.get("/requests/both").json()["choices"][0]["stage"] == "send")
        waits = server.client.get("/requests/both").json()["choices"][0]["waits"]
        assert waits["reason"] == "choices"
        server.send(final(messages[1], "b", (2,)))
        assert call.response.status == 200
        call.json()
    wait_until(lambda: {c["state"] for c in server.client.get("/requests/both").json()["choices"]} == {"finished"})


def test_a_client_that_left_is_among_the_ended_when_the_ring_has_ended_it(server: FrontendRun):
    watched = Watched(server)
    watched.call.leave()
    server.take_abort()
    assert watched.shown()["state"] == "waiting"
    server.send(final(watched.message, finish_reason="abort", stamps=stamps_of(watched.message)))
    wait_until(lambda: watched.shown()["state"] == "finished")
    assert watched.shown()["finish_reason"] == "abort"


def test_a_client_that_does_not_read_is_what_its_request_waits_for():
    with FrontendRun() as run:
        run.show(table(BEATING))
        watched = Watched(run)
        text = "x" * 20_000

        def is_blocked() -> bool:
            run.send(step([(watched.message, 5, text)]))
            waits = watched.shown()["waits"]
            return waits is not None and waits["reason"] == "client"

        watched.report(chunks=ChunkRow(watched.uid, 0, time.monotonic_ns(), 0, 17, 17))
        watched.prefilled()
        wait_until(is_blocked)
        assert "the client has read nothing for" in watched.shown()["waits"]["text"]
        watched.call.leave()
        run.take_abort()
        run.send(final(watched.message, finish_reason="abort"))
        wait_until(lambda: watched.shown()["state"] == "finished")


def test_a_restart_is_a_stage_and_new_requests_are_on_hold():
    with FrontendRun(make_config(run=RunConfig(restart_hold_s=30.0))) as run:
        watched = Watched(run)
        watched.prefilled()
        watched.wait_for("decode")
        run.show(table_after({"scheduler": 1}, scheduler="restarting"))
        waits = watched.shown()["waits"]
        assert waits["reason"] == "process"
        assert "scheduler is restarting" in waits["text"]
        with run.call({"request_id": "new"}) as call:
            wait_until(lambda: run.client.get("/requests/new").status_code == 200)
            (held,) = run.client.get("/requests/new").json()["choices"]
            assert (held["stage"], held["state"]) == ("hold", "waiting")
            assert "scheduler is restarting" in held["waits"]["text"]
            run.show(table_after({"scheduler": 2}))
            again, new = run.take_request(), run.take_request()
            assert (again.uid, again.attempt) == (watched.uid, 1)
            shown = watched.shown()
            assert shown["attempts"] == 2
            assert stages_of(shown)[-2:] == ["restart", "tokenizer_queue"]
            check_sums(shown)
            for message in (again, new):
                run.send(final(message, stamps=stamps_of(message)))
            assert call.events()
        assert watched.call.events()
        watched.call.leave()
        wait_until(lambda: watched.shown()["state"] == "finished")
        check_sums(watched.shown())


def test_only_the_latest_that_ended_are_kept():
    with FrontendRun() as run:
        for number in range(1005):
            with run.call({"stream": False, "request_id": f"r{number}"}) as call:
                run.send(final(run.take_request(), "ok", (1,)))
                assert call.response.status == 200
                call.json()
        wait_until(lambda: run.gauge("timelines") == 0)
        reply = run.client.get("/requests", params={"limit": 1000}).json()
        assert reply["num_found"] == 1000
        assert run.client.get("/requests/r0").status_code == 404
        assert run.client.get("/requests/r1004").status_code == 200


def test_slow_requests_are_logged_in_one_line():
    with FrontendRun(make_config(HttpConfig(port=0, slow_request_s=0.0))) as run, run.call({"stream": False}) as call:
        message = run.take_request()
        run.send(final(message, "ok", (1,), stamps=stamps_of(message)))
        call.json()
        wait_until(lambda: "slow request: uid=" in run.launcher.log_text("frontend"))
        line = next(line for line in run.launcher.log_text("frontend").splitlines() if "slow request" in line)
        assert all(f" {stage}=" in line for stage in ("accept", "tokenizer_queue", "detokenize", "deliver", "send"))


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[FrontendRun, OtherFrontend]]:
    with FrontendRun(make_config(run=RunConfig(frontend_workers=2))) as run:
        yield run, OtherFrontend(run)


def test_the_one_that_is_asked_answers_for_all(pair: tuple[FrontendRun, OtherFrontend]):
    run, other = pair
    watched = Watched(run, {"request_id": "mine"})
    found = other.ask(FindRequests(request_ids=("mine",)), FoundRequests)
    line = json.loads(found.requests[0].shown)
    assert (line["uid"], line["frontend"]) == (watched.uid, "frontend")

    theirs = {**line, "uid": 5, "request_id": "theirs", "frontend": "frontend-2"}
    listed = Asked(lambda: run.client.get("/requests?state=waiting"))
    ask = other.take_question()
    assert ask.question == FindRequests(state="waiting")
    other.answer(ask, FoundRequests((FoundRequest(1, False, json.dumps(theirs).encode()),), 1))
    reply = listed.response().json()
    assert [(each["request_id"], each["frontend"]) for each in reply["requests"]] == [
        ("theirs", "frontend-2"),
        ("mine", "frontend"),
    ]
    assert (reply["num_found"], reply["frontends_missing"]) == (2, 0)

    unanswered = Asked(lambda: run.client.get("/requests/theirs"))
    other.take_question()
    reply = unanswered.response()
    assert reply.status_code == 404
    assert "1 frontends did not answer" in reply.json()["error"]["message"]
    run.send(final(watched.message))
    watched.call.events()
    watched.call.leave()
