"""`GET /live` of a frontend process: everything at first, then what changes; of all frontends; until it drains."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from extras.live.view import LiveRequest
from messages.config.server import HttpConfig, RunConfig
from messages.control.processes import Drain, ProcessTable
from messages.ring.peers import LiveReport, PeerReply, ReportLive, StepEnd, StepPlan
from messages.ring.timeline import ChunkRow, QueueFacts, ScheduleReport
from tests.frontend.frontend_run import Call, FrontendRun, InThread, final, make_config, step, table, wait_until
from tests.frontend.other_frontend import OtherFrontend

KEY = "sk-client"
FACTS = QueueFacts(None, 0, 1, 256, 17, 512, 3, 40, 0, 0, 0.0)


class Viewer:
    """A client of the stream, and the state that its events add up to."""

    def __init__(self, call: Call):
        assert call.response.status == 200
        assert call.response.headers["content-type"].startswith("text/event-stream")
        self._call = call
        self.state: dict[str, Any] = {"processes": {}, "edges": {}, "requests": {}, "steps": {}}
        self.latest: dict[str, Any] = {}

    def next(self) -> bool:
        """Takes the next event in; false at the end of the stream."""
        data = self._call.next_data()
        if data == "[DONE]":
            assert self._call.next_event() == ""
            return False
        self.latest = json.loads(data)
        for part, value in self.latest.items():
            if part in ("processes", "edges", "requests", "steps"):
                merged = {**self.state[part], **value}
                self.state[part] = {key: one for key, one in merged.items() if one is not None}
            else:
                self.state[part] = value
        return True

    def until(self, condition: Callable[[dict[str, Any]], Any]) -> None:
        while not condition(self.state):
            assert self.next(), "the stream has ended"


@contextmanager
def viewing(server: FrontendRun, headers: dict[str, str] | None = None) -> Iterator[Viewer]:
    with server.call(path="/live", method="GET", headers=headers) as call:
        yield Viewer(call)


def test_first_comes_everything_and_then_what_changes(server: FrontendRun):
    with viewing(server) as viewer:
        viewer.next()
        assert {name: process["state"] for name, process in viewer.state["processes"].items()} == dict.fromkeys(
            ("frontend", "tokenizer", "scheduler", "detokenizer"), "ready"
        )
        *others, detokenizer = table().processes
        server.show(ProcessTable((*others, msgspec.structs.replace(detokenizer, state="hung"))))
        viewer.until(lambda state: state["processes"]["detokenizer"]["state"] == "hung")
        server.show(ProcessTable(tuple(others)))
        viewer.until(lambda state: set(state["processes"]) == {"frontend", "tokenizer", "scheduler"})
        assert viewer.latest["processes"]["detokenizer"] is None
    server.show(table())
    wait_until(lambda: server.gauge("viewers") == 0)


def test_a_request_and_its_steps_are_seen_from_begin_to_end(server: FrontendRun):
    with viewing(server) as viewer, server.call() as call:
        viewer.next()
        message = server.take_request()
        uid = str(message.uid)
        viewer.until(lambda state: uid in state["requests"])
        assert viewer.state["requests"][uid]["waits"]["reason"] == "tokenizer"
        assert "heard_s" not in viewer.state["requests"][uid]["waits"]
        planned_ns = time.monotonic_ns()
        server.send(ScheduleReport(planned_ns, FACTS, (ChunkRow(message.uid, 0, 0, 0, 17, 17),), step_id=5))
        viewer.until(lambda state: state["requests"][uid]["stage"] == "prefill")
        viewer.until(lambda state: state["steps"].get(str(planned_ns)) == [planned_ns, None, 17, 0, 1])
        tokens = msgspec.structs.replace(step([(message, 5, "a")]), step_id=5, committed_ns=planned_ns + 3000)
        server.send(tokens)
        viewer.until(lambda state: state["requests"][uid]["output_tokens"] == 1)
        viewer.until(lambda state: state["steps"][str(planned_ns)] == [planned_ns, planned_ns + 3000, 17, 0, 1])
        server.send(final(message, finish_reason="stop"))
        call.events()
        viewer.until(lambda state: state["requests"][uid]["end_ns"])
        ended = msgspec.convert(viewer.state["requests"][uid], LiveRequest)
        assert (ended.finish_reason, ended.stage) == ("stop", None)
        assert "uid" in viewer.latest["requests"][uid], "each is told whole"


def test_all_frontends_are_shown_whichever_is_asked():
    config = make_config(run=RunConfig(frontend_workers=2))
    with FrontendRun(config) as run:
        other = OtherFrontend(run)
        with run.call() as call:
            message = run.take_request()
            own = other.ask(ReportLive(), LiveReport)
            assert own.num_open == 1
            (shown,) = msgspec.json.decode(own.requests, type=dict[str, LiveRequest]).values()
            theirs = msgspec.structs.replace(shown, uid=77, request_id="theirs", frontend="frontend-2")
            reply = LiveReport(
                3, msgspec.json.encode({"77": theirs}), (StepPlan(1000, 1, 4, 4),), (StepEnd(2000, 1, 1),)
            )
            with viewing(run) as viewer:
                answering = InThread(lambda: _answer_all(other, reply, lambda: "77" in viewer.state["requests"]))
                viewer.until(lambda state: "77" in state["requests"])
                assert answering.result()
                assert viewer.state["num_open"] == 4
                assert {one["frontend"] for one in viewer.state["requests"].values()} == {"frontend", "frontend-2"}
                assert viewer.state["steps"] == {"1000": [1000, 2000, 4, 0, 1]}
                viewer.until(lambda state: state.get("frontends_missing") == 1)  # it does not answer any more
                assert str(message.uid) in viewer.state["requests"]
            run.send(final(message))
            call.events()


def _answer_all(other: OtherFrontend, reply: PeerReply, is_enough: Callable[[], bool]) -> bool:
    while not is_enough():
        other.answer(other.take_question(), reply)
    return True


def test_a_drain_ends_it_and_no_one_new_may_look():
    with FrontendRun() as run, run.call() as call:
        message = run.take_request()
        with viewing(run) as viewer:
            viewer.next()
            run.launcher.send("frontend", Drain(60.0))
            while viewer.next():
                pass
        with run.call(path="/live", method="GET") as refused:
            assert (refused.response.status, refused.json()["error"]["code"]) == (503, "draining")
        run.send(final(message))
        assert call.events()[-1]["finish_reason"] == "length", "what runs goes on"


def test_it_needs_the_key_of_a_client_and_the_page_needs_none():
    with FrontendRun(make_config(HttpConfig(port=0, api_key=(KEY,)))) as run:
        assert run.client.get("/live").status_code == 401
        assert run.client.get("/").status_code == run.client.get("/page/any/main.js").status_code == 200
        with viewing(run, {"Authorization": f"Bearer {KEY}"}) as viewer:
            assert viewer.next()


def test_it_shows_a_start_before_every_process_is_ready():
    with FrontendRun(is_ready=False) as run:
        run.show(table(scheduler="starting"))
        with viewing(run) as viewer:
            viewer.next()
            assert viewer.state["processes"]["scheduler"]["state"] == "starting"
