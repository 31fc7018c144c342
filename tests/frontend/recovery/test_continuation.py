"""Open requests during the restart of a process, in a ring played by the test."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from messages.columns import pack_int32, unpack_int32
from messages.config.server import HttpConfig
from messages.control.processes import ProcessTable
from messages.ring.requests import FramesLost, TokenizeMsg
from messages.ring.uids import UIDS_PER_BLOCK
from tests.frontend.frontend_run import FrontendRun, final, make_config, step, table, table_after, wait_until


@pytest.fixture
def run() -> Iterator[FrontendRun]:
    """A frontend that a test may show restarts; afterwards it must soon hold nothing."""
    with FrontendRun(make_config(HttpConfig(port=0, sse_keepalive_s=1.0))) as run:
        yield run
        wait_until(lambda: run.gauge("requests") == 0)
        assert run.gauge("held_requests") == 0
        assert not run.arrived()
        assert "Traceback" not in run.launcher.log_text("frontend")


def continuation(message: TokenizeMsg, attempt: int, token_ids: list[int], num_chars_sent: int) -> TokenizeMsg:
    return msgspec.structs.replace(
        message, attempt=attempt, output_ids=pack_int32(token_ids), num_chars_sent=num_chars_sent
    )


def text_of(event: str) -> str:
    return json.loads(event)["text"]


@pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
def test_a_stream_continues_at_the_very_next_character(run: FrontendRun, name: str):
    with run.call() as call:
        message = run.take_request()
        run.send(step([(message, 1, "aü")]))
        assert text_of(call.next_data()) == "aü"
        run.send(step([(message, 2, "")]))
        call.next_data()
        run.replace(name, 2)
        again = run.take_request()
        assert again == continuation(message, 1, [1, 2], 2)
        run.send(step([(message, 3, "old")], (final(message, "old", (3,)),)))
        run.send(step([(again, 3, "bc")]))
        assert text_of(call.next_data()) == "bc"
        run.send(step(finals=(final(again, "d", (4,)),)))
        (end,) = call.events()
        assert (end["text"], end["token_ids"], end["timing"]["attempts"]) == ("d", [4], 2)
        assert end["timing"]["ttft_ms"] < end["timing"]["total_ms"]


def test_after_a_gap_no_token_of_the_old_attempt_is_shown(run: FrontendRun):
    with run.call() as call:
        message = run.take_request()
        run.send(step([(message, 1, "a")]))
        assert text_of(call.next_data()) == "a"
        run.replies.num_sent += 1  # the step of token 2 never leaves
        run.send(step([(message, 3, "c")]))
        again = run.take_request()
        assert again == continuation(message, 1, [1], 1)
        run.send(step([(message, 4, "d")], (final(message, "e", (5,)),)))
        run.send(step([(again, 2, "b")]))
        assert text_of(call.next_data()) == "b"
        run.send(step(finals=(final(again, "c", (3,)),)))
        (end,) = call.events()
        assert (end["text"], end["token_ids"], end["timing"]["attempts"]) == ("c", [3], 2)


def test_a_loss_that_another_process_reports_of_is_answered_in_the_same_way(run: FrontendRun):
    with run.call() as call:
        message = run.take_request()
        run.send(step([(message, 1, "a")]))
        call.next_data()
        run.send(FramesLost("detokenizer", 5, 7, 7))
        again = run.take_request()
        assert again == continuation(message, 1, [1], 1)
        run.send(step(finals=(final(again),)))
        call.events()


def test_a_frame_that_never_arrives_is_seen_in_the_beats(run: FrontendRun):
    def beats(age_s: float) -> ProcessTable:
        """The scheduler has sent five frames, and the detokenizer has had four."""
        fields: dict[str, dict[str, Any]] = {
            "scheduler": {"sent": {"detokenizer": (5, 5)}},
            "detokenizer": {"received": {5: (1, 4)}},
        }
        return ProcessTable(
            tuple(msgspec.structs.replace(status, **fields.get(status.name, {})) for status in table(age_s).processes)
        )

    with run.call() as call:
        message = run.take_request()
        run.show(beats(9.0))
        run.show(beats(7.0))
        assert not run.arrived(), "it may be on its way"
        run.show(beats(5.0))
        again = run.take_request()
        assert again == continuation(message, 1, [], 0)
        run.send(FramesLost("detokenizer", 5, 5, 5))  # as soon as the next frame comes, but that is no news
        run.send(step(finals=(final(again),)))
        call.events()


def test_what_an_old_attempt_still_brings_before_the_restart_is_over_counts(run: FrontendRun):
    with run.call() as call:
        message = run.take_request()
        run.show(table(scheduler="restarting"))
        run.send(step([(message, 1, "a")]))
        assert text_of(call.next_data()) == "a"
        run.show(table_after({"scheduler": 2}))
        again = run.take_request()
        assert unpack_int32(again.output_ids).tolist() == [1]
        run.send(step(finals=(final(again),)))
        call.events()


def test_a_paused_stream_gets_comments(run: FrontendRun):
    with run.call() as call:
        message = run.take_request()
        run.show(table(scheduler="restarting"))
        assert call.next_event() == ": keep-alive"
        assert run.health()["status"] == "unhealthy"
        run.show(table_after({"scheduler": 2}, scheduler="starting"))
        assert call.next_event() == ": keep-alive"
        assert not run.arrived()
        run.show(table_after({"scheduler": 2}))
        assert run.health()["processes"]["scheduler"]["num_restarts"] == 1
        again = run.take_request()
        assert again == continuation(message, 1, [], 0)
        run.send(step(finals=(final(again, "a", (1,)),)))
        assert [event["text"] for event in call.events()] == ["a"]


def test_a_reply_in_one_piece_is_whole(run: FrontendRun):
    with run.call({"stream": False}) as call:
        message = run.take_request()
        run.send(step([(message, 1, "a")]))
        run.round_trip()
        run.replace("scheduler", 2)
        again = run.take_request()
        run.send(step(finals=(final(again, "b", (2,)),)))
        reply = call.json()
        assert (reply["text"], reply["token_ids"], reply["timing"]["attempts"]) == ("ab", [1, 2], 2)


def test_a_dead_tokenizer_has_had_only_what_has_no_token(run: FrontendRun):
    with run.call() as first:
        one = run.take_request()
        second = run.call()
        two = run.take_request()
        run.send(step([(one, 1, "a")]))
        run.round_trip()
        run.replace("tokenizer", 2)
        assert run.take_request() == continuation(two, 1, [], 0)
        run.send(step(finals=(final(one, "b", (2,)), final(continuation(two, 1, [], 0), "c", (3,)))))
        texts = ["".join(event["text"] for event in call.events()) for call in (first, second)]
        assert texts == ["ab", "c"]
        second.leave()


def test_a_tokenizer_that_dies_with_a_continuation_in_hand(run: FrontendRun):
    """A continuation has tokens, but none of its own attempt: it may not have passed the tokenizer."""
    with run.call() as call:
        message = run.take_request()
        run.send(step([(message, 1, "a")]))
        call.next_data()
        run.replace("scheduler", 2)
        run.take_request()
        run.show(table_after({"scheduler": 2, "tokenizer": 1}, tokenizer="restarting"))
        run.show(table_after({"scheduler": 2, "tokenizer": 2}))
        again = run.take_request()
        assert again == continuation(message, 2, [1], 1)
        run.send(step(finals=(final(again, "b", (2,)),)))
        assert [event["text"] for event in call.events()] == ["b"]


def test_several_restarts_at_once_are_one_continuation(run: FrontendRun):
    with run.call() as call:
        run.take_request()
        run.show(table_after({"scheduler": 2}, detokenizer="restarting"))
        assert not run.arrived()
        run.show(table_after({"scheduler": 2, "detokenizer": 2}))
        again = run.take_request()
        assert again.attempt == 1
        run.send(step(finals=(final(again),)))
        call.events()


def test_a_process_that_was_replaced_before_all_were_ready_continues_nothing():
    with FrontendRun(is_ready=False) as run:
        run.show(table_after({"tokenizer": 3}))
        run.round_trip()


def test_an_abandoned_request_ends_at_once_in_its_next_attempt(run: FrontendRun):
    call = run.call()
    message = run.take_request()
    run.send(step([(message, 1, "a")]))
    call.next_data()
    call.leave()
    run.take_abort()
    run.replace("scheduler", 2)
    again = run.take_request()
    assert (again.attempt, again.sampling_params.max_tokens) == (1, 1)
    run.send(step(finals=(final(again),)))


def test_a_client_may_leave_while_a_process_restarts(run: FrontendRun):
    call = run.call()
    run.take_request()
    run.show(table(scheduler="restarting"))
    call.leave()
    run.take_abort()
    run.show(table_after({"scheduler": 2}))
    again = run.take_request()
    assert (again.attempt, again.sampling_params.max_tokens) == (1, 0)
    run.send(step(finals=(final(again),)))


@pytest.mark.parametrize("name", ["tokenizer", "scheduler"])
def test_an_abort_by_api_is_repeated(run: FrontendRun, name: str):
    with run.call() as call:
        message = run.take_request()
        run.show(table(**{name: "restarting"}))
        assert run.client.post("/abort_request", json={"uid": message.uid}).json()["aborted"] == [message.uid]
        run.take_abort()
        run.show(table_after({name: 2}))
        again = run.take_request()
        abort = run.take_abort()
        assert (again.attempt, abort.uid, abort.attempt) == (1, message.uid, 1)
        run.send(step(finals=(final(again, finish_reason="abort"),)))
        assert call.events()[-1]["finish_reason"] == "abort"


def test_a_dead_tokenizer_gets_the_aborts_of_running_requests_again(run: FrontendRun):
    call = run.call()
    message = run.take_request()
    run.send(step([(message, 1, "a")]))
    call.next_data()
    call.leave()
    run.take_abort()
    run.replace("tokenizer", 2)
    abort = run.take_abort()
    assert (abort.uid, abort.attempt) == (message.uid, 0)
    run.send(step(finals=(final(message, finish_reason="abort"),)))


def test_suspects_run_alone_and_the_culprit_is_refused(run: FrontendRun):
    with run.call() as first:
        one = run.take_request()
        second = run.call({"stream": False})
        two = run.take_request()
        run.send(step([(one, 1, "a")]))
        run.round_trip()
        run.replace("scheduler", 2)
        assert [run.take_request().uid, run.take_request().uid] == [one.uid, two.uid]
        run.replace("scheduler", 3)
        alone = run.take_request()
        assert (alone.uid, alone.attempt) == (one.uid, 2)
        assert run.gauge("held_requests") == 1
        assert not run.arrived()
        run.send(step([(alone, 2, "b")]))
        assert run.take_request() == continuation(two, 2, [], 0)
        run.replace("scheduler", 4)
        rest = [run.take_request(), run.take_request()]
        ended, going = sorted(rest, key=lambda message: message.uid == one.uid)
        assert (ended.uid, ended.sampling_params.max_tokens) == (two.uid, 0)
        run.send(step(finals=(final(ended), final(going, "c", (3,)))))
        assert "".join(event["text"] for event in first.events()) == "abc"
        assert second.response.status == 500
        assert second.json()["error"]["message"].startswith("internal error, reference ")
        second.leave()


def test_a_restarted_frontend_disowns_what_came_before_it():
    with FrontendRun(incarnation=3) as run:
        assert run.take_drop_before().uid == 3 * UIDS_PER_BLOCK
        with run.call() as call:
            message = run.take_request()
            assert message.uid > 3 * UIDS_PER_BLOCK
            orphan = msgspec.structs.replace(message, uid=message.uid - UIDS_PER_BLOCK)
            run.send(step([(orphan, 5, "x")], (final(orphan, finish_reason="abort"),)))
            run.show(table_after({"tokenizer": 2}))  # which may have died with the first one in hand
            assert run.take_drop_before().uid == 3 * UIDS_PER_BLOCK
            again = run.take_request()
            run.send(step(finals=(final(again, "a", (1,)),)))
            assert [event["text"] for event in call.events()] == ["a"]
        assert "dropped" not in run.launcher.log_text("frontend")
