"""Two stages of three join over TCP: tokens are one process's, whichever process of a joined machine dies."""

import os
import re
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from benchmarks.server_process import ServerProcess
from extras.remote.join_keys import make_keys
from runtime.run_dir import RunDir
from tests.free_port import find_free_port
from tests.frontend.frontend_run import wait_until
from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.conftest import CHEAP, HOLD_S, READY_TIMEOUT_S, RESTART_FLAGS
from tests.ring.test_kept_cache import MAX_TRIES, requests
from tests.ring.test_remote_engines import joining, run_dirs

pytestmark = pytest.mark.ring

__all__ = ["requests"]  # a fixture

END_TIMEOUT_S = 90.0


def rank_pid(joiner: "subprocess.Popen[str]", name: str) -> int:
    """Returns the process with the rank, 0 if another machine has it."""
    return next((pid for path in run_dirs(joiner) if (pid := RunDir(path).pids().get(name))), 0)


def kill(pid: int) -> None:
    assert pid, "no machine has the rank"
    os.kill(pid, signal.SIGKILL)


def check_wrong_key(address: str, folder: Path, log: IO[str]) -> None:
    _, keys = make_keys()
    (folder / "other.key").write_bytes(msgspec.json.encode(keys))
    with joining(address, folder / "other.key", log) as joiner:
        assert joiner.wait(END_TIMEOUT_S) == 1


@pytest.mark.timeout(300)
def test_streams_continue_exactly_when_a_machine_with_a_stage_dies(
    tiny_checkpoint: Path, tmp_path: Path, plain_ring: RingClient, requests: list[dict[str, Any]]
) -> None:
    undisturbed = [(one.text, one.token_ids) for one in plain_ring.generate_all(requests)]
    addresses = [f"tcp://127.0.0.1:{find_free_port()}" for _ in range(2)]
    flags = ["--model", str(tiny_checkpoint), "--cpu-threads", "1", *CHEAP, *RESTART_FLAGS, "--admin-key", ADMIN_KEY]
    flags += ["--restart-hold-s", str(HOLD_S), "--max-num-batched-tokens", "64"]
    flags += ["--pipeline-parallel", "3", "--remote-stages", *addresses]
    with tempfile.TemporaryFile("w+") as log, ExitStack() as stack:
        server = ServerProcess(flags, has_own_session=True)
        stack.callback(server.stop)
        wait_until(server.run_dir.join_keys.exists, END_TIMEOUT_S)
        first, second, standby = (
            stack.enter_context(joining(address, server.run_dir.join_keys, log, retry_s=60))
            for address in (*addresses, addresses[0])
        )
        target = server.wait_until_ready(READY_TIMEOUT_S)
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        check_wrong_key(addresses[0], tmp_path, log)
        victims = (
            lambda: kill(rank_pid(second, "rank2")),
            lambda: kill(next(joiner.pid for joiner in (first, standby) if rank_pid(joiner, "rank1"))),
            *[lambda: ring.kill("rank1")] * MAX_TRIES,  # the proxy; again if all streams had ended each time
        )
        num_continued = 0
        for num_deaths, harm in enumerate(victims, 1):
            got = ring.generate_disturbed(requests, harm)
            assert [(one.text, one.token_ids) for one in got] == undisturbed
            num_continued += sum(one.attempts > 1 for one in got)
            for name in ("scheduler", "rank1", "rank2"):
                ring.wait_for_restart(name, num_deaths)
            if num_deaths > 2 and num_continued:
                break
        else:
            raise AssertionError("no stream was disturbed")
        cached = ring.generate_all(requests)
        assert [(one.text, one.token_ids) for one in cached] == undisturbed
        ring.wait_until_empty()
        assert ring.gauges("scheduler")["prefix_hit_tokens"] > 0
        assert ring.gauges("rank2")["stage"] == 2
        assert server.stop() == 0, server.log_text()
        assert sorted(joiner.wait(END_TIMEOUT_S) for joiner in (first, second, standby)) == [-signal.SIGKILL, 0, 0]
        log.seek(0)
        text = log.read()
        assert "the head does not know this key" in text
        assert len(re.findall("joined .* as rank1", text)) == num_deaths + 1, text
