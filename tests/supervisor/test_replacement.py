"""Processes that die or hang in a run of scripted ones, and what replaces them."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runtime.run_dir import RunDir
from tests.supervisor.fake_run import (
    BOOT_TIMEOUT_S,
    GOOD,
    HANG_TIMEOUT_S,
    TIMEOUT_S,
    FakeRun,
    environment,
    is_running,
    wait_until,
)

NAMES = ("frontend", "tokenizer", "scheduler", "detokenizer")
SERVING = "stop     Ctrl-C"


def start(*more_names: str, settings: dict[str, object] | None = None, **behaviours: str) -> FakeRun:
    """Starts a frontend, a scheduler and `more_names`: two processes show what does not concern all four."""
    names = sorted({"frontend", "scheduler", *more_names}, key=[*NAMES, *more_names].index)
    return FakeRun({**dict.fromkeys(names, GOOD), **behaviours}, **(settings or {}))


def states_of(run: FakeRun, name: str) -> list[str]:
    """Returns the states of process `name` in the frontend's tables, without repetitions."""
    states = re.findall(rf"^frontend +table .*\b{name}=([\w.]+)", run.output, re.MULTILINE)
    return [state for i, state in enumerate(states) if i == 0 or states[i - 1] != state]


def stop(run: FakeRun) -> None:
    """Ends the run and asserts that all is as if nothing had happened."""
    run.record_pids()
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait_exit() == 0, run.output
    assert "Traceback" not in run.output
    run.assert_nothing_left()


@pytest.mark.parametrize("name", ["tokenizer", "scheduler", "detokenizer"])
def test_a_killed_process_is_replaced_and_the_frontend_learns_of_each_state(name: str):
    with start(*NAMES) as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        os.kill(pids[name], signal.SIGKILL)
        run.wait_for(f"{name}=ready.2")
        assert (
            f"{name:<12} died: it was killed by SIGKILL (kill -9, or the kernel's out-of-memory killer) " in run.output
        )
        assert "; restarting in 0 s (1 of 10 a minute)" in run.output
        states = states_of(run, name)
        assert states[-3:] == ["restarting", "starting.2", "ready.2"]
        new_pids = run.record_pids()
        assert new_pids[name] != pids[name]
        assert {**new_pids, name: 0} == {**pids, name: 0}
        stop(run)
        assert f"{name:<12} stopping" in run.output


def test_a_stopped_process_is_hung_and_is_replaced():
    with start(settings={"hang_timeout_s": HANG_TIMEOUT_S}) as run:
        run.wait_for(SERVING)
        scheduler = run.record_pids()["scheduler"]
        os.kill(scheduler, signal.SIGSTOP)
        run.wait_for("scheduler    hangs: no heartbeat for")
        run.wait_for("idle, so it is killed")
        run.wait_for("scheduler    died: it hung and was killed after ")
        run.wait_for("scheduler=ready.2")
        assert not is_running(scheduler)
        states = states_of(run, "scheduler")
        # Where the kill is quick, no table is sent between it and the death.
        without_hung = [state for state in states if state != "hung.killed"]
        assert without_hung[-4:] == ["ready", "restarting", "starting.2", "ready.2"]
        stop(run)


def test_no_process_is_killed_after_the_whole_machine_was_stopped():
    with start(settings={"hang_timeout_s": 6.0}) as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        for pid in (run.launcher.pid, *pids.values()):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(6.5)
        run.launcher.send_signal(signal.SIGCONT)
        time.sleep(1.5)  # it looks at the others before they beat again
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        time.sleep(1.5)
        assert run.record_pids() == pids
        stop(run)
        assert "hangs" not in run.output


def test_a_frontend_that_receives_is_notified_of_itself_and_of_all_others_at_once():
    with start(*NAMES) as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["frontend"], signal.SIGKILL)
        run.wait_for("frontend     table frontend=starting.2 tokenizer=ready scheduler=ready detokenizer=ready")
        run.wait_for("frontend     table frontend=ready.2 tokenizer=ready scheduler=ready detokenizer=ready")
        stop(run)
        assert "frontend     drain 30" in run.output


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 256 KiB."""
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as path:
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", path]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no file system may be mounted here")
        try:
            yield Path(path)
        finally:
            subprocess.run(["umount", "--lazy", path], check=True)


def test_a_full_disk_under_the_run_directory_ends_nothing(small_disk: Path):
    settings = {"max_snapshots": 1, "snapshot_dir": str(small_disk / "snapshots")}
    with FakeRun(dict.fromkeys(NAMES, GOOD), RunDir(small_disk / "run"), **settings) as run:
        run.wait_for(SERVING)
        others = run.record_pids()
        tokenizer = others.pop("tokenizer")
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "filler").write_bytes(bytes(1 << 20))
        for incarnation in (2, 3):
            os.kill(tokenizer, signal.SIGKILL)
            run.wait_for(f"tokenizer=ready.{incarnation}")
            children = {child.pid for child in psutil.Process(run.launcher.pid).children()}
            (tokenizer,) = children - set(others.values())
        assert "is not whole: [Errno 28] No space left on device" in run.output
        stop(run)


def test_a_disk_without_room_for_a_run_directory_is_notified(small_disk: Path):
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(bytes(1 << 20))
    with FakeRun(dict.fromkeys(NAMES, GOOD), RunDir(small_disk / "run")) as run:
        assert run.wait_exit() == 2
        assert "run/config.json: No space left on device" in run.output or "run: No space left on device" in run.output
        assert "Traceback" not in run.output


def test_connections_wait_for_the_next_frontend():
    with start(frontend="answer_connections") as run:
        run.wait_for(SERVING)
        address = ("127.0.0.1", run.run_dir.read_config().http.port)
        with socket.create_connection(address, TIMEOUT_S) as client:
            assert client.recv(10) == b"1"
        front = run.record_pids()["frontend"]
        os.kill(front, signal.SIGKILL)
        wait_until(lambda: not is_running(front))
        clients = [socket.create_connection(address, TIMEOUT_S) for _ in range(20)]
        for client in clients:
            assert client.recv(10) == b"2"
            client.close()
        stop(run)


def test_a_replacement_that_cannot_start_is_one_more_death():
    with start(scheduler="fail_to_boot_again") as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("scheduler=ready.3")
        line = "scheduler    cannot start: there are no weights in /nowhere; restarting in 0.5 s (2 of 10 a minute)\n"
        assert line in run.output
        stop(run)


def test_a_replacement_that_never_comes_to_serve_is_killed_and_one_more_death():
    with start(scheduler="boot_for_ever_again", settings={"boot_timeout_s": BOOT_TIMEOUT_S}) as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("scheduler=ready.3")
        assert re.search(
            r"scheduler +cannot start: no progress for \d+ s in phase 'loading weights'.*; rest", run.output
        )
        stop(run)


def test_a_process_that_dies_too_often_ends_the_run():
    with start(scheduler="never_boot_again", settings={"max_restarts_per_min": 2}) as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        assert run.wait_exit() == 1
        last = "there were 2 restarts in the last minute and --max-restarts-per-min is 2"
        assert (
            f"scheduler cannot start: there are no weights in /nowhere\nit is not started again: {last}" in run.output
        )
        assert states_of(run, "scheduler")[-1] == "dead.3"
        run.assert_nothing_left()


def test_a_process_that_must_not_be_replaced_ends_the_run():
    with start("tokenizer", settings={"restart": ["scheduler=never"]}) as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["tokenizer"], signal.SIGKILL)
        run.wait_for("tokenizer=ready.2")
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        assert run.wait_exit() == 1
        assert "scheduler died: it was killed by SIGKILL" in run.output
        assert "it is not started again: --restart scheduler=never" in run.output
        run.assert_nothing_left()


def test_others_are_watched_and_stopped_while_a_replacement_starts():
    with start("tokenizer", scheduler="boot_for_ever_again") as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("scheduler=starting.2")
        os.kill(run.record_pids()["tokenizer"], signal.SIGKILL)
        run.wait_for("tokenizer=ready.2 scheduler=starting.2")
        stop(run)
        assert "frontend     drain 30" in run.output


def test_what_waits_for_its_restart_is_not_started_after_a_stop_signal():
    with start(scheduler="never_boot_again") as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("restarting in 2 s")
        stop(run)
        assert "restarting in 4 s" not in run.output


def test_nothing_is_left_after_the_launcher_was_killed_during_a_restart():
    with start(scheduler="boot_for_ever_again") as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("scheduler=starting.2")
        os.kill(run.record_pids()["frontend"], signal.SIGKILL)
        run.launcher.kill()
        run.assert_nothing_left(timeout_s=30.0)


def test_a_process_that_dies_during_the_drain_is_replaced_so_that_its_requests_can_end():
    with start(frontend="never_finish_draining", settings={"drain_timeout_s": 2.5}) as run:
        run.wait_for(SERVING)
        run.launcher.send_signal(signal.SIGTERM)
        run.wait_for("frontend     drain 2.5")
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("; restarting in 0 s")
        assert run.wait_exit() == 0
        assert run.output.count("scheduler    ready in") == 2
        run.assert_nothing_left()


def test_a_frontend_that_dies_during_the_drain_is_not_replaced():
    with start(frontend="never_finish_draining") as run:
        run.wait_for(SERVING)
        run.launcher.send_signal(signal.SIGTERM)
        run.wait_for("frontend     drain 30")
        os.kill(run.record_pids()["frontend"], signal.SIGKILL)
        assert run.wait_exit() == 1
        assert "frontend died: it was killed by SIGKILL" in run.output
        assert "restarting" not in run.output
        run.assert_nothing_left()


def test_a_process_that_was_started_by_hand_is_waited_for_again():
    with start(settings={"external": ["scheduler"]}) as run:
        run.wait_for("--run-dir")
        words = [
            word for word in shlex.split(run.output.split("start it by hand\n")[1].splitlines()[0]) if "=" not in word
        ]
        for incarnation in (1, 2):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            by_hand = subprocess.Popen(words, env=environment(), **quiet)
            run.wait_for(SERVING if incarnation == 1 else "scheduler=ready.2")
            assert run.record_pids()["scheduler"] == by_hand.pid
            if incarnation == 1:
                by_hand.kill()
                by_hand.wait(TIMEOUT_S)
                run.wait_for("scheduler    died: it ended (it was started by hand)")
                run.wait_for("scheduler=restarting")
        assert run.output.count("waiting: start it by hand") == 2
        stop(run)
        assert by_hand.wait(TIMEOUT_S) == 0


def test_twenty_restarts_leave_nothing_behind():
    with start(*NAMES, "fifth", settings={"max_restarts_per_min": 100}) as run:
        run.wait_for(SERVING)
        launcher = psutil.Process(run.launcher.pid)
        num_descriptors, num_threads = launcher.num_fds(), launcher.num_threads()
        for incarnation in range(2, 6):
            for pid in run.record_pids().values():
                os.kill(pid, signal.SIGKILL)
            run.wait_for("frontend     table " + " ".join(f"{name}=ready.{incarnation}" for name in (*NAMES, "fifth")))
        pids = run.record_pids()
        assert set(pids) == {*NAMES, "fifth"}
        assert all(map(is_running, pids.values()))
        assert {child.pid for child in launcher.children()} == set(pids.values())
        assert (launcher.num_fds(), launcher.num_threads()) == (num_descriptors, num_threads)
        assert "20 of 100 a minute" in run.output
        stop(run)
