"""A forked server starts, fails and dies as one that `launch.py` starts."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.server_process import ServerProcess
from runtime.run_dir import other_processes
from tests.fork_host import ForkHost
from tests.frontend.frontend_run import wait_until
from tests.ring.client import TIMEOUT_S, RingClient
from tests.ring.conftest import Start

pytestmark = pytest.mark.ring


def test_a_wrong_flag(fork_host: ForkHost):
    server = ServerProcess(["--num-pages", "none"], has_own_session=True, open_process=fork_host.open)
    with pytest.raises(ServerUnavailableError, match=r"exited with 2:\n.*--num-pages"):
        server.wait_until_ready(TIMEOUT_S)
    assert server.stop() == 2


def test_processes_have_the_names_and_groups_of_a_real_start(start_ring: Start, tiny_checkpoint: Path):
    ring: RingClient = start_ring(tiny_checkpoint)
    pids = {name: ring.status(name)["pid"] for name in ("frontend", "tokenizer", "scheduler", "detokenizer")}
    launcher = psutil.Process(pids["frontend"]).parent()
    assert launcher is not None
    assert launcher.cmdline()[1].endswith("launch.py")
    assert os.getsid(launcher.pid) == launcher.pid
    for name, pid in pids.items():
        assert (os.getpgid(pid), os.getsid(pid)) == (pid, launcher.pid)
        assert psutil.Process(pid).cmdline()[2].startswith(name)


def test_a_killed_launcher_takes_its_processes_along(fork_host: ForkHost, tiny_checkpoint: Path):
    arguments = ["--model", str(tiny_checkpoint), "--cpu-threads", "1", "--no-standby"]
    server = ServerProcess(arguments, has_own_session=True, open_process=fork_host.open)
    try:
        server.wait_until_ready(TIMEOUT_S)
        pids = other_processes(server.run_dir)
        assert len(pids) >= 4
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), TIMEOUT_S)
    finally:
        code = server.stop()
    assert code == -signal.SIGKILL
