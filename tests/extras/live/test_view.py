"""The lines about stages in an event of the live stream."""

from extras.live.traffic import UNKNOWN_COST
from extras.live.view import LiveState, make_event, make_process
from messages.control.processes import ProcessStatus


def test_an_event_names_the_slowest_stage_and_what_to_move():
    processes = {
        name: make_process(ProcessStatus(name, "ready", gauges=gauges), UNKNOWN_COST)
        for name, gauges in {
            "rank1": {"stage": 1.0, "layers": 8.0, "computing_s": 9.0},
            "scheduler": {"stage": 2.0, "layers": 8.0, "computing_s": 4.0},
        }.items()
    }
    (line,) = make_event(LiveState(), LiveState(processes), 1).stages
    assert line.endswith("; rank1 is the slowest: try --stages 7,9")
