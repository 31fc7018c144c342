"""New requests while a process of the ring is being replaced, in a ring played by the test."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from messages.columns import pack_int32
from messages.config.server import Config, HttpConfig, RunConfig, SchedulingConfig
from messages.control.processes import Drain, Drained, FrontendReport, ProcessTable, Stop
from messages.ring.replies import EncodeReply
from messages.ring.requests import EncodeMsg, FramesLost, TokenizeMsg
from tests.frontend.frontend_run import Call, FrontendRun, final, make_config, step, table, table_after, wait_until

SHORT_S = 0.3
LONG_S = 300.0
"""Longer than any test takes on any machine."""

RING = ["tokenizer", "scheduler", "detokenizer"]


def config(hold_s: float = LONG_S, **scheduling: Any) -> Config:
    return make_config(
        HttpConfig(port=0, sse_keepalive_s=0.5), SchedulingConfig(**scheduling), RunConfig(restart_hold_s=hold_s)
    )


Start = Callable[[Config], FrontendRun]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a frontend; afterwards it must soon hold nothing, and nothing may be on its way to the tokenizer."""
    runs: list[FrontendRun] = []

    def start(config: Config) -> FrontendRun:
        runs.append(FrontendRun(config).__enter__())
        return runs[-1]

    yield start
    for run in runs:
        try:
            wait_until(lambda run=run: run.gauge("requests") == 0)
            assert run.gauge("requests_on_hold") == 0
            assert run.gauge("deadlines") == 0
            assert not run.arrived()
            assert "Traceback" not in run.launcher.log_text("frontend")
        finally:
            run.__exit__(None, None, None)


@pytest.fixture
def run(start: Start) -> FrontendRun:
    return start(config())


def hold(run: FrontendRun, body: dict[str, Any] | None = None, path: str = "/generate", num: int = 1) -> Call:
    """Sends a request and waits until it is held, as `num` choices."""
    num += int(run.gauge("requests_on_hold"))
    call = run.call(body, path=path)
    wait_until(lambda: run.gauge("requests_on_hold") == num)
    return call


def finish(run: FrontendRun, call: Call, attempt: int = 0) -> None:
    """Takes the request of `call` and answers it."""
    message = run.take_request()
    assert message.attempt == attempt
    run.send(step(finals=(final(message, "ok", (1,)),)))
    assert call.events()[-1]["text"] == "ok"
    call.leave()


def killed(name: str) -> ProcessTable:
    """The table when `name` has been found to hang and has been killed."""
    return ProcessTable(
        tuple(
            msgspec.structs.replace(status, is_killed=status.name == name)
            for status in table(**{name: "hung"}).processes
        )
    )


@pytest.mark.parametrize("name", RING)
def test_a_new_request_waits_for_the_process_and_is_then_sent(run: FrontendRun, name: str):
    run.show(table(**{name: "restarting"}))
    call = hold(run)
    run.show(table_after({name: 2}, **{name: "starting"}))
    assert not run.arrived()
    assert run.gauge("requests") == 1
    run.show(table_after({name: 2}))
    finish(run, call)
    run.round_trip()


def test_so_does_one_in_one_piece_with_several_choices(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    call = hold(run, {"n": 3}, "/v1/completions", num=3)
    run.show(table_after({"scheduler": 2}))
    messages = run.take(TokenizeMsg).each()
    assert len(messages) == 3
    run.send(step(finals=tuple(final(message, "x", (1,)) for message in messages)))
    assert [choice["text"] for choice in call.json()["choices"]] == ["x"] * 3
    call.leave()


def test_choices_for_several_prompts_are_sent_a_message_a_prompt(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    call = hold(run, {"prompt": ["a", "bc"], "n": 2}, "/v1/completions", num=4)
    run.show(table_after({"scheduler": 2}))
    sent = [run.take(TokenizeMsg) for _ in range(2)]
    assert [(message.prompt_text, len(message.siblings)) for message in sent] == [("a", 1), ("bc", 1)]
    run.send(step(finals=tuple(final(one, "x", (1,)) for message in sent for one in message.each())))
    assert len(call.json()["choices"]) == 4
    call.leave()


@pytest.mark.parametrize("is_streamed", [True, False])
def test_when_the_hold_is_over_it_is_a_503(start: Start, is_streamed: bool):
    run = start(config(SHORT_S))
    run.show(table(scheduler="restarting"))
    refused = run.client.post("/generate", json={"prompt": "hi", "stream": is_streamed})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert "scheduler is restarting" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert 'sluice_requests_refused_total{code="not_ready",model_name="org/m"} 1.0' in run.client.get("/metrics").text
    run.show(table_after({"scheduler": 2}))
    run.round_trip()


def test_a_crash_loop_does_not_prolong_the_hold(start: Start):
    run = start(config(SHORT_S))
    run.show(table(scheduler="restarting"))
    asked = run.ask("/generate", {"prompt": "hi"})
    for incarnation in range(2, 6):
        run.show(table_after({"scheduler": incarnation}, scheduler="starting"))
        run.show(table_after({"scheduler": incarnation}, scheduler="restarting"))
    assert (asked.response().status_code, asked.response().json()["error"]["code"]) == (503, "not_ready")


def test_without_a_hold_it_is_a_503_at_once(start: Start):
    run = start(config(0.0))
    run.show(table(scheduler="restarting"))
    assert run.client.post("/generate", json={"prompt": "hi"}).json()["error"]["code"] == "not_ready"
    assert run.client.post("/tokenize", json={"prompt": "hi"}).json()["error"]["code"] == "not_ready"


@pytest.mark.parametrize("state", ["dead", "hung"])
def test_nothing_waits_for_a_process_that_is_not_replaced(run: FrontendRun, state: Any):
    run.show(table(scheduler=state))
    refused = run.client.post("/generate", json={"prompt": "hi"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert f"scheduler is {state}" in refused.json()["error"]["message"]


def test_what_waits_is_refused_as_soon_as_its_process_will_not_come_back(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    whole = hold(run, {"stream": False})
    run.show(table(scheduler="dead"))
    assert whole.response.status == 503
    assert "scheduler is dead" in whole.json()["error"]["message"]
    whole.leave()


def test_a_stream_whose_head_is_out_gets_an_error_event(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    call = hold(run)
    assert call.next_event() == ": keep-alive"
    run.show(table(scheduler="dead"))
    (event,) = call.events()
    assert event["error"]["code"] == "not_ready"
    call.leave()


def test_a_process_that_hung_and_was_killed_is_waited_for(run: FrontendRun):
    run.show(killed("scheduler"))
    call = hold(run)
    run.show(table_after({"scheduler": 2}))
    finish(run, call)


def test_a_client_may_leave_and_is_forgotten_at_once(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    hold(run).leave()
    wait_until(lambda: run.gauge("requests") == 0)
    run.show(table_after({"scheduler": 2}))
    run.round_trip()


def test_an_abort_ends_it_at_once(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    call = hold(run, {"request_id": "mine"})
    assert len(run.client.post("/abort_request", json={"request_id": "mine"}).json()["aborted"]) == 1
    (end,) = call.events()
    assert (end["finish_reason"], end["text"], end["token_ids"]) == ("abort", "", [])
    call.leave()
    run.show(table_after({"scheduler": 2}))
    run.round_trip()


def test_its_own_deadline_counts(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    reply = run.client.post("/generate", json={"prompt": [5, 6], "timeout_s": SHORT_S, "stream": False}).json()
    assert (reply["finish_reason"], reply["text"], reply["usage"]["prompt_tokens"]) == ("timeout", "", 2)


def test_it_has_a_place_in_admission(start: Start):
    run = start(config(max_num_seqs=1, max_queued_requests=1))
    run.show(table(scheduler="restarting"))
    calls = [hold(run), hold(run)]
    refused = run.client.post("/generate", json={"prompt": "hi"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    run.show(table_after({"scheduler": 2}))
    for call in calls:
        finish(run, call)


def test_choices_enter_together_or_not_at_all(start: Start):
    run = start(config(max_num_seqs=1, max_queued_requests=2))
    run.show(table(scheduler="restarting"))
    call = hold(run)
    refused = run.client.post("/v1/completions", json={"prompt": "hi", "n": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    assert (run.gauge("requests"), run.gauge("requests_on_hold")) == (1, 1)
    run.show(table_after({"scheduler": 2}))
    finish(run, call)


def test_they_are_sent_by_priority_and_arrival_after_those_that_had_begun(run: FrontendRun):
    with run.call({"prompt": "0"}) as first:
        begun = run.take_request()
        run.send(step([(begun, 1, "a")]))
        first.next_event()
        run.show(table(scheduler="restarting"))
        calls = [
            hold(run, {"prompt": prompt, "priority": priority}) for prompt, priority in (("3", 5), ("1", 0), ("2", 0))
        ]
        run.show(table_after({"scheduler": 2}))
        messages = [run.take_request() for _ in range(4)]
        assert [(message.prompt_text, message.attempt) for message in messages] == [
            ("0", 1),
            ("1", 0),
            ("2", 0),
            ("3", 0),
        ]
        run.send(step(finals=tuple(final(message, "b", (2,)) for message in messages)))
        assert [call.events()[-1]["text"] for call in (first, *calls)] == ["b"] * 4
    for call in calls:
        call.leave()


def test_what_waits_is_no_part_of_a_loss_and_no_suspect(run: FrontendRun):
    with run.call() as first:
        begun = run.take_request()
        run.show(table(scheduler="restarting"))
        second = hold(run)
        run.send(FramesLost("detokenizer", 5, 7, 7))
        assert (run.take_request().uid, run.gauge("requests_on_hold")) == (begun.uid, 1)
        run.show(table_after({"scheduler": 2}))
        again, other = run.take_request(), run.take_request()
        assert (again.uid, again.attempt, other.attempt) == (begun.uid, 2, 0)
        run.replace("scheduler", 3)  # the second death for the one, and the first for the other
        rest = {message.uid: message for message in (run.take_request(), run.take_request())}
        assert {uid: message.attempt for uid, message in rest.items()} == {begun.uid: 3, other.uid: 1}
        run.send(step(finals=tuple(final(message, "x", (1,)) for message in rest.values())))
        assert [call.events()[-1]["text"] for call in (first, second)] == ["x", "x"]
        second.leave()


def test_a_tokenizer_that_dies_with_it_in_hand(run: FrontendRun):
    run.show(table(tokenizer="restarting"))
    call = hold(run)
    run.show(table_after({"tokenizer": 2}))
    assert run.take_request().attempt == 0
    run.replace("tokenizer", 3)
    finish(run, call, attempt=1)


def test_a_drain_waits_for_it(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    call = hold(run)
    run.launcher.send("frontend", Drain(LONG_S))
    wait_until(lambda: run.health()["status"] == "draining")
    assert run.client.post("/generate", json={"prompt": "hi"}).json()["error"]["code"] == "draining"
    run.show(table_after({"scheduler": 2}))
    finish(run, call)
    assert run.launcher.wait_for("frontend", Drained) == Drained(0)


def test_the_end_of_the_run_is_its_end():
    with FrontendRun(config()) as run:
        run.show(table(scheduler="restarting"))
        with hold(run, {"stream": False}) as call:
            run.launcher.send("frontend", Stop())
            assert (call.response.status, call.json()["error"]["code"]) == (503, "shutting_down")


def test_health_reports_the_truth_meanwhile(run: FrontendRun):
    run.show(table(scheduler="restarting"))
    for path in ("/health", "/ping", "/health/generate"):
        assert run.client.get(path).status_code == 503
    assert run.health()["status"] == "unhealthy"
    assert run.gauge("requests") == 0


def test_what_waits_is_counted_with_those_that_wait_for_a_row(run: FrontendRun):
    fields: dict[str, dict[str, Any]] = {
        "frontend": {"frontend": FrontendReport(num_on_hold=3), "uid_block": 1},
        "scheduler": {"gauges": {"waiting": 2}},
    }
    run.show(
        ProcessTable(
            tuple(msgspec.structs.replace(status, **fields.get(status.name, {})) for status in table().processes)
        )
    )
    wait_until(lambda: run.client.get("/load").json()["requests_waiting"] == 5)
    assert 'vllm:num_requests_waiting{model_name="org/m"} 5.0' in run.client.get("/metrics").text


def test_questions_to_the_tokenizer_wait_too(run: FrontendRun):
    run.show(table(tokenizer="restarting"))
    asked = run.ask("/tokenize", {"prompt": "hi"})
    wait_until(lambda: run.gauge("calls") == 1)
    run.show(table_after({"tokenizer": 2}))
    question = run.take(EncodeMsg)
    run.send(EncodeReply(question.uid, pack_int32([7, 8])))
    assert asked.response().json()["tokens"] == [7, 8]


def test_questions_are_refused_when_the_hold_is_over(start: Start):
    run = start(config(SHORT_S))
    run.show(table(tokenizer="restarting"))
    refused = run.client.post("/tokenize", json={"prompt": "hi"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert run.gauge("calls") == 0


def test_a_whole_reply_has_the_head_of_its_end(run: FrontendRun):
    """Nothing is written before the end is known."""
    run.show(table(detokenizer="restarting"))
    call = hold(run, {"stream": False})
    run.show(table_after({"detokenizer": 2}))
    message = run.take_request()
    run.send(step(finals=(final(message, "ok", (1,)),)))
    assert (call.response.status, json.loads(call.response.read())["text"]) == (200, "ok")
    call.leave()
