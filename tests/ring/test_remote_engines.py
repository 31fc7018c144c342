"""An engine that joins over TCP: when it or its joiner dies, its requests continue elsewhere and it returns."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx
import pytest

from benchmarks.experiments.remote_engines_0067.bench_remote_cost import OTHER_CLOCK, can_have_other_clock
from benchmarks.server_process import started_server
from frontend.requests.timelines import NUM_ENDED
from messages.control.admin import Done, TakeSnapshot
from runtime.run_dir import RunDir, default_path
from supervisor.client.admin_client import AdminClient
from supervisor.profiles.record import take_profile
from supervisor.python_process import ROOT
from tests.free_port import find_free_port
from tests.frontend.frontend_run import wait_until
from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.conftest import READY_TIMEOUT_S, RESTART_FLAGS
from tests.ring.test_engines import SERVING, count_streams, status
from tests.ring.test_rolling_restart import COMMAND_TIMEOUT_S, Load, make_requests, replace
from tests.ring.test_timelines import shown

pytestmark = pytest.mark.ring

REMOTE = "scheduler-2"
CATEGORIES = {"sluice", "cpu_op"}
"""The slices of our profiler, and those of torch's."""

ARRIVAL_S = 0.3
"""Time for the last tokens of an engine that was stopped to arrive."""


@contextmanager
def joining(address: str, key_file: Path, log: IO[str], retry_s: float = 6) -> Iterator[subprocess.Popen[str]]:
    """A joiner on this machine, with another clock if possible. It is killed at the end if it is still running."""
    command = OTHER_CLOCK if can_have_other_clock() else []
    flags = ["--key-file", str(key_file), "--cpu-threads", "1", "--retry-s", str(retry_s)]
    joiner = subprocess.Popen(
        [*command, sys.executable, str(ROOT / "launch.py"), "join", address, *flags],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        text=True,
    )
    try:
        yield joiner
    finally:
        joiner.kill()
        joiner.wait()


def run_dirs(joiner: subprocess.Popen[str]) -> list[Path]:
    prefix = default_path(f"join-{joiner.pid}-")
    return list(prefix.parent.glob(f"{prefix.name}*"))


def has_engine(joiner: subprocess.Popen[str]) -> bool:
    return any(RunDir(path).pid_file(REMOTE).exists() for path in run_dirs(joiner))


def engine_pid(joiner: subprocess.Popen[str]) -> int:
    (path,) = run_dirs(joiner)
    return RunDir(path).pids()[REMOTE]


async def kill_under_load(load: Load, client: httpx.AsyncClient, engine: int, victim: int) -> int:
    """Kills a process while the engine has streams and waits until they continue. Returns the engine's incarnation."""
    incarnation = (await status(client, REMOTE))["incarnation"]
    num_continued = load.num_continued
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        await stop_amid_streams(client, engine)
        os.kill(victim, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)  # a stopped one would not notice that its joiner has died
        while load.num_continued == num_continued:
            await asyncio.sleep(0.02)
    return incarnation


async def stop_amid_streams(client: httpx.AsyncClient, engine: int) -> None:
    """Stops the engine while it has streams, which it can then not end."""
    while True:
        while await count_streams(client, 2) < 2:
            await asyncio.sleep(0.02)
        os.kill(engine, signal.SIGSTOP)
        await asyncio.sleep(ARRIVAL_S)
        if await count_streams(client, 2):
            return
        os.kill(engine, signal.SIGCONT)


async def wait_for_next(client: httpx.AsyncClient, incarnation: int) -> None:
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        while True:
            now = await status(client, REMOTE)
            if now["incarnation"] > incarnation and now["state"] in SERVING:
                return
            await asyncio.sleep(0.1)


def check_timelines(ring: RingClient, num_replies: int) -> None:
    """Every stage of every request began after the previous one and within the request, on any clock."""
    with httpx.Client(base_url=ring.url, timeout=COMMAND_TIMEOUT_S) as client:
        listed = client.get("/requests", params={"limit": NUM_ENDED, "state": "finished"}).json()["requests"]
        assert len(listed) >= min(num_replies, NUM_ENDED)
        for line in listed:
            timeline = shown(client, line["request_id"])
            begins_ms = [stage["begin_ms"] for stage in timeline["stages"]] + timeline["step_ends_ms"][-1:]
            assert min(stage["duration_ms"] for stage in timeline["stages"]) >= 0, timeline
            assert begins_ms[:-1] == sorted(begins_ms[:-1]), timeline
            assert max(begins_ms) <= timeline["total_ms"], timeline


def begins_by_category(trace_file: Path) -> dict[str, list[float]]:
    """Returns when the slices of each category began, in us of the monotonic clock."""
    trace, begins_us = json.loads(trace_file.read_bytes()), defaultdict[str, list[float]](list)
    for one in trace["traceEvents"]:
        if "cat" in one:
            begins_us[one["cat"]].append(trace["otherData"]["base_monotonic_ns"] / 1e3 + one["ts"])
    return begins_us


def check_profile_and_stacks(ring: RingClient, folder: Path) -> None:
    """The head gets the engine's profile, on the head's clock, and its stacks."""
    began_ns = time.monotonic_ns()
    with AdminClient(ring.run_dir) as line:
        for seconds in (0.5, 4.0, 16.0):  # on a busy machine the engine may do nothing for a moment
            text = take_profile(line, [REMOTE], seconds, folder / "trace.json")
            begins_us = begins_by_category(folder / "trace.json")
            if begins_us.keys() >= CATEGORIES:
                break
        snapshot = line.give(TakeSnapshot(str(folder / "snapshot")), COMMAND_TIMEOUT_S)
    assert f"{REMOTE}; " in text
    for category in CATEGORIES:
        begins = begins_us[category]
        assert began_ns / 1e3 < min(begins) <= max(begins) < time.monotonic_ns() / 1e3, category
    assert isinstance(snapshot, Done), snapshot
    engine_stacks = folder / "snapshot" / "processes" / REMOTE / "engine-stacks"
    assert "scheduler_proc/process.py" in engine_stacks.read_text()
    assert "extras/remote/proxy.py" in (engine_stacks.parent / "stacks").read_text()


def test_no_stream_notices_the_death_of_an_engine_or_of_its_joiner(tiny_checkpoint: Path, tmp_path: Path):
    address = f"tcp://127.0.0.1:{find_free_port()}"
    flags = ["--model", str(tiny_checkpoint), "--cpu-threads", "1", *RESTART_FLAGS, "--admin-key", ADMIN_KEY]
    with tempfile.TemporaryFile("w+") as log, ExitStack() as stack:
        server, target = stack.enter_context(started_server([*flags, "--remote-engines", address], READY_TIMEOUT_S))
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        requests = make_requests(4, max_tokens=190)
        undisturbed = ring.generate_all(requests)  # by the engine here: no other one has joined
        load = Load(ring, requests, undisturbed)

        async def act(client: httpx.AsyncClient) -> None:
            with joining(address, ring.run_dir.join_keys, log) as joiner:
                await wait_for_next(client, 0)
                await asyncio.to_thread(check_profile_and_stacks, ring, tmp_path)
                engine = engine_pid(joiner)
                incarnation = await kill_under_load(load, client, engine, engine)
                await wait_for_next(client, incarnation)
                await load.wait_for_replies(4)
                await replace(client, REMOTE)  # the joiner must stop its engine and then joins again
                engine = engine_pid(joiner)
                await kill_under_load(load, client, engine, joiner.pid)
                wait_until(lambda: not Path(f"/proc/{engine}").exists(), COMMAND_TIMEOUT_S)
                wait_until(lambda: not run_dirs(joiner), COMMAND_TIMEOUT_S)

        asyncio.run(load.run_during(act))
        check_timelines(ring, load.num_replies)
        assert ring.status("scheduler")["num_restarts"] == 0
        last = stack.enter_context(joining(address, ring.run_dir.join_keys, log))
        wait_until(lambda: has_engine(last), COMMAND_TIMEOUT_S)
        assert server.stop() == 0, server.log_text()
        exit_code = last.wait(COMMAND_TIMEOUT_S)
        log.seek(0)
        text = log.read()
        assert exit_code == 0, f"it ends with the head: {text}{server.log_text()}"
        assert not run_dirs(last)
        assert len(re.findall(f"joined {address} as {REMOTE}", text)) == 4, text
        assert text.endswith("the head has ended\n"), text
