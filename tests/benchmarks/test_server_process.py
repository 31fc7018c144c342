"""A benchmark's own server: ready or a clear reason why not, and gone afterwards."""

from collections.abc import Callable

import pytest

from benchmarks.load.server_facts import ServerUnavailableError, ask_server
from benchmarks.server_process import ServerProcess, is_running, started_server, tree_pids


def test_a_server_is_ready_on_a_free_port_and_leaves_nothing(launch_fake: Callable[[str], None]) -> None:
    launch_fake("well")
    with started_server(["--model", "tiny"], deadline_s=60) as (server, target):
        assert ask_server(target).vocab_size == 2048
        pids = tree_pids(server.pid)
        assert len(pids) == 2
        assert server.stop() == 0
        assert server.stop() == 0, "stopping again changes nothing"
        assert [line for _, line in server.log] == ["loading tiny", "ready"], "all of it is there once it has ended"
        assert all(second >= 0 for second, _ in server.log)
    assert not any(is_running(pid) for pid in pids)
    assert not server.run_dir.path.exists()


def test_a_start_that_fails_shows_the_log(launch_fake: Callable[[str], None]) -> None:
    launch_fake("fails")
    with (
        pytest.raises(ServerUnavailableError, match=r"(?s)exited with 1:.*no weights in there"),
        started_server([], deadline_s=60),
    ):
        pass


def test_a_start_that_does_not_end_is_given_up(launch_fake: Callable[[str], None]) -> None:
    launch_fake("starts-for-ever")
    server = ServerProcess([])
    try:
        with pytest.raises(ServerUnavailableError, match=r"not ready after 0\.5 s"):
            server.wait_until_ready(0.5)
        pid = server.pid
        assert is_running(pid)
    finally:
        server.stop()
    assert not is_running(pid)


def test_the_exit_code_is_told(launch_fake: Callable[[str], None]) -> None:
    launch_fake("exits-with-3")
    with started_server([], deadline_s=60) as (server, _):
        assert server.stop() == 3
