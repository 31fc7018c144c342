"""A real server whose scheduler is killed while another one stands by, which takes over with the same weights."""

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.server_process import ServerProcess
from tests.ring.client import RingClient, body
from tests.ring.conftest import READY_TIMEOUT_S

pytestmark = pytest.mark.ring

SPARE, NUM_STREAMS, OUTPUT_TOKENS, MAX_TRIES = "scheduler.next", 4, 200, 8


def wait_for_spare(ring: RingClient, other_than: int = 0) -> int:
    """Returns the pid of the standby process."""
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        status: dict[str, Any] = ring.health()["processes"].get(SPARE, {"state": "none", "pid": 0})
        if status["state"] == "standby" and status["pid"] != other_than:
            return status["pid"]
        hurry(status["pid"])
        time.sleep(0.1)
    raise AssertionError(f"nothing stands by: {ring.health()['processes']}")


def hurry(pid: int) -> None:
    """Gives a process that prepares at the lowest priority the priority of this one, where that is allowed."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), os.nice(0))


def maps_of(pid: int) -> list[str]:
    """Returns the files that a process maps, from /proc."""
    return [line.split(maxsplit=5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/" in line]


def test_it_has_the_weights_takes_over_and_every_text_stays(tiny_checkpoint: Path):
    requests = [
        body([5 + index, 6, 7] * 9, max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0.9 * (index % 2), seed=1)
        for index in range(NUM_STREAMS)
    ]
    flags = ["--cpu-threads", "1", "--dtype", "float32", "--max-restarts-per-min", "100"]
    server = ServerProcess(["--model", str(tiny_checkpoint), *flags])
    try:
        target = server.wait_until_ready(READY_TIMEOUT_S)
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        undisturbed = ring.generate_all(requests)
        spare = 0
        for num_deaths in range(1, MAX_TRIES + 1):
            spare = wait_for_spare(ring, spare)
            running = ring.status("scheduler")["pid"]
            assert list(server.run_dir.black_box.glob(f"scheduler.{running}.*")), "its frames are gone"
            for pid in (running, spare):
                assert any("memfd:sluice-weights" in path for path in maps_of(pid))
            assert {one.nice() for one in (psutil.Process(running), psutil.Process(spare))} == {os.nice(0)}
            ring.wait_until_empty()
            # Without another request first, during which the streams might end.
            got = ring.generate_disturbed(requests, partial(os.kill, running, signal.SIGKILL))
            assert [(one.text, one.token_ids) for one in got] == [(one.text, one.token_ids) for one in undisturbed]
            ring.wait_for_restart("scheduler", num_deaths)
            assert ring.status("scheduler")["pid"] == spare
            if max(one.attempts for one in got) > 1:
                break
        else:
            raise AssertionError("the scheduler never died in mid-stream")
        ring.wait_until_empty()
        assert ring.gauges("scheduler")["pages_recovered"] > 0
    finally:
        assert server.stop() == 0, server.log_text()
