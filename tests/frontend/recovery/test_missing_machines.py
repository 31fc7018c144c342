"""Requests of an engine that lacks the machine of a stage: they wait as long as new requests do, and then end."""

import time

import msgspec

from messages.config.server import RunConfig
from messages.control.processes import ProcessStatus, ProcessTable
from tests.frontend.frontend_run import FrontendRun, final, make_config, step, table, table_after

HOLD_S = 0.3


def without(phase: str) -> ProcessTable:
    """The scheduler starts, and so does its other stage, which is in this phase."""
    stage = ProcessStatus("rank1", "starting", pid=3, incarnation=1, phase=phase, beat_ns=time.monotonic_ns())
    return ProcessTable((*table(scheduler="starting").processes, stage))


def test_requests_end_with_their_output_when_no_machine_joins_in_time() -> None:
    with FrontendRun(make_config(run=RunConfig(restart_hold_s=HOLD_S))) as run, run.call() as call:
        message = run.take_request()
        run.send(step([(message, 1, "a")]))
        assert msgspec.json.decode(call.next_data())["text"] == "a"
        run.show(without("loading weights"))
        time.sleep(HOLD_S)
        run.show(without("loading weights"))
        run.show(without("waiting at tcp://10.0.0.2:7001"))
        late = run.client.post("/generate", json={"prompt": "a"})
        assert late.status_code == 503
        assert "rank1 is starting (waiting at tcp://10.0.0.2:7001)" in late.json()["error"]["message"]
        run.show(without("waiting at tcp://10.0.0.2:7001"))
        (end,) = call.events()
        assert (end["finish_reason"], end["usage"]["completion_tokens"]) == ("timeout", 1)
        run.show(table_after({"scheduler": 2}))
        again = run.take_request()
        assert (again.uid, again.attempt) == (message.uid, 1), "it is still to be ended in the other processes"
        assert again.sampling_params.max_tokens == 1
        run.send(step(finals=(final(again),)))
        assert "1 requests end without their engine: rank1 is starting" in run.launcher.log_text("frontend")
