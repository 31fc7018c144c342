"""`GET /health` with several frontends."""

import msgspec

from messages.control.processes import ProcessTable
from tests.frontend.frontend_run import FrontendRun, table, wait_until
from tests.frontend.other_frontend import BLOCK, OWN_BLOCK, front


def test_a_frontend_whose_place_was_taken_does_not_answer_for_its_successor():
    with FrontendRun() as run:
        ring = [status for status in table().processes if status.name != "frontend"]
        leaving = msgspec.structs.replace(front(OWN_BLOCK), name="frontend.old", is_leaving=True)
        successor = msgspec.structs.replace(front(BLOCK), name="frontend", incarnation=2, pid=4711)
        run.launcher.send("frontend", ProcessTable((leaving, successor, *ring)))
        wait_until(lambda: "frontend.old" in run.health()["processes"])
        processes = run.health()["processes"]
        assert (processes["frontend"]["pid"], processes["frontend"]["incarnation"]) == (4711, 2)
        assert processes["frontend.old"]["pid"] == run.process.pid
        assert "requests" in processes["frontend.old"]["gauges"]
