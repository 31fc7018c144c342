import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from messages.channels import ControlClient, Waiter
from messages.control.processes import Hello, Refusal, ToProcess
from messages.schema import SCHEMA_VERSION
from supervisor.supervisor import SAME_WISH_S
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

ALL_GOOD = {"frontend": GOOD, "tokenizer": GOOD, "scheduler": GOOD, "detokenizer": GOOD}
LIFELINE_TIMEOUT_S = 30.0


def start(run_dir=None, settings=None, **behaviours: str) -> FakeRun:
    """Starts a frontend, a scheduler, and what `behaviours` name: two processes show what does not concern all four."""
    return FakeRun({"frontend": GOOD, "scheduler": GOOD, **behaviours}, run_dir, **(settings or {}))


def start_all(run_dir=None, settings=None) -> FakeRun:
    return FakeRun(ALL_GOOD, run_dir, **(settings or {}))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_drains_stops_everything_and_exits_with_0(number: signal.Signals):
    with start_all() as run:
        run.wait_for("stop     Ctrl-C")
        pids = run.record_pids()
        assert set(pids) == set(ALL_GOOD)
        assert run.run_dir.address_file.read_text().strip() in run.output
        run.launcher.send_signal(number)
        assert run.wait_exit() == 0
        assert run.output.index("frontend     drain 30") < run.output.index("frontend     stopping")
        for name in ALL_GOOD:
            assert f"{name:<12} stopping" in run.output
        run.assert_nothing_left()


def test_each_phase_and_every_quarter_of_progress_is_a_line_where_there_is_no_terminal():
    with start(scheduler="load_slowly") as run:
        run.wait_for("stop     Ctrl-C")
        lines = [line.split(maxsplit=1)[1] for line in run.output.splitlines() if line.startswith("scheduler ")]
        assert lines[:4] == ["loading weights", "loading weights 60 %", "loading weights 100 %", "warming up"]
        assert lines[4].startswith("ready in ")
        assert lines[4].endswith(" s, degraded: no CUDA graphs: no memory")


def test_the_frontend_receives_that_all_are_ready():
    with start_all() as run:
        run.wait_for("stop     Ctrl-C")
        run.wait_for("table frontend=ready tokenizer=ready scheduler=ready detokenizer=ready")


def test_the_line_to_paste_is_valid_shell_with_the_real_port():
    with start() as run:
        run.wait_for("stop     Ctrl-C")
        line = next(line for line in run.output.splitlines() if line.lstrip().startswith("try"))
        words = shlex.split(line)
        assert words[1:3] == ["curl", "-N"]
        assert words[3] == run.run_dir.address_file.read_text().strip() + "/generate"
        assert run.run_dir.read_config().http.port == int(words[3].split(":")[2].split("/")[0])


def test_a_start_that_a_shorter_context_would_have_saved_is_left_to_its_caller():
    with start(scheduler="lack_memory") as run:
        assert run.wait_exit() == 2, "what fake_launch makes of an exception"
        assert "too little memory for 4096 tokens" in run.output.splitlines()
        run.assert_nothing_left()


def test_the_reason_of_a_boot_failure_is_notified_and_everything_stops():
    with start(scheduler="fail_to_boot") as run:
        assert run.wait_exit() == 1
        assert "scheduler cannot start: there are no weights in /nowhere" in run.output
        run.assert_nothing_left()


def test_a_crash_while_starting_is_notified_with_its_traceback():
    with start(tokenizer="crash_at_boot") as run:
        assert run.wait_exit() == 1
        assert "tokenizer cannot start: it exited with code 1" in run.output
        assert "  | RuntimeError: a bug in the loader" in run.output
        run.assert_nothing_left()


def test_a_phase_without_progress_ends_the_start():
    with start(scheduler="stay_in_phase", settings={"boot_timeout_s": BOOT_TIMEOUT_S}) as run:
        assert run.wait_exit() == 1
        assert "scheduler cannot start: no progress for " in run.output
        assert "in phase 'loading weights'" in run.output
        run.assert_nothing_left()


def test_a_later_death_is_notified_by_its_signal_and_last_lines_and_the_frontend_learns_of_it_before_it_stops():
    with start(settings={"restart": ["scheduler=never"]}) as run:
        run.wait_for("stop     Ctrl-C")
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        assert run.wait_exit() == 1
        assert "scheduler died: it was killed by SIGKILL (kill -9, or the kernel's out-of-memory killer)" in run.output
        assert run.output.index("scheduler=dead") < run.output.index("frontend     stopping")
        run.assert_nothing_left()


def test_the_last_lines_of_a_process_that_dies_at_once_are_not_lost():
    with start(scheduler="die_when_ready", settings={"restart": ["scheduler=never"]}) as run:
        assert run.wait_exit() == 1
        assert "its last lines:\n  | last words" in run.output


def test_the_death_of_the_frontend_may_end_the_run_too():
    with start(settings={"restart": ["frontend=never"]}) as run:
        run.wait_for("stop     Ctrl-C")
        os.kill(run.record_pids()["frontend"], signal.SIGSEGV)
        assert run.wait_exit() == 1
        assert "frontend died: it was killed by SIGSEGV (a crash in native code)" in run.output
        run.assert_nothing_left()


def test_a_process_that_does_not_stop_is_killed():
    with start(detokenizer="ignore_everything") as run:
        run.wait_for("stop     Ctrl-C")
        run.launcher.send_signal(signal.SIGTERM)
        assert run.wait_exit() == 0
        assert "detokenizer  does not stop, so it is killed" in run.output
        run.assert_nothing_left()


def test_the_drain_ends_at_its_deadline():
    with start(frontend="never_finish_draining", settings={"drain_timeout_s": 0.2}) as run:
        run.wait_for("stop     Ctrl-C")
        began_s = time.monotonic()
        run.launcher.send_signal(signal.SIGTERM)
        run.wait_for("frontend     drain 0.2")
        assert run.wait_exit() == 0
        assert time.monotonic() - began_s > 1.0
        run.assert_nothing_left()


def test_a_signal_that_comes_twice_at_once_is_one():
    with start() as run:
        run.wait_for("stop     Ctrl-C")
        run.launcher.send_signal(signal.SIGTERM)
        run.launcher.send_signal(signal.SIGINT)
        assert run.wait_exit() == 0
        assert "killed" not in run.output
        run.assert_nothing_left()


def test_a_second_ctrl_c_does_not_wait_for_the_drain():
    with start(frontend="never_finish_draining", settings={"drain_timeout_s": 1000}) as run:
        run.wait_for("stop     Ctrl-C")
        run.launcher.send_signal(signal.SIGINT)
        run.wait_for("frontend     drain 1000")
        time.sleep(2 * SAME_WISH_S)
        run.launcher.send_signal(signal.SIGINT)
        assert run.wait_exit() == 130
        assert "frontend     stopping" in run.output
        run.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_during_the_start_ends_it_cleanly(number: signal.Signals):
    with start(scheduler="stay_in_phase", detokenizer="import_for_ever") as run:
        run.wait_for("loading weights")
        run.launcher.send_signal(number)
        assert run.wait_exit() == 0
        assert "cannot start" not in run.output
        run.assert_nothing_left()


def test_nothing_is_left_after_the_launcher_was_killed():
    with start() as run:
        run.wait_for("stop     Ctrl-C")
        run.launcher.kill()
        run.assert_nothing_left(LIFELINE_TIMEOUT_S)


def test_nothing_is_left_after_the_launcher_was_killed_while_a_process_is_stopped():
    with start_all() as run:
        run.wait_for("stop     Ctrl-C")
        os.kill(run.record_pids()["tokenizer"], signal.SIGSTOP)
        run.launcher.kill()
        run.assert_nothing_left(LIFELINE_TIMEOUT_S)


def test_nothing_is_left_after_the_launcher_was_killed_during_the_start():
    with start(scheduler="stay_in_phase", detokenizer="import_for_ever", tokenizer="ignore_everything") as run:
        run.wait_for("loading weights")
        wait_until(lambda: set(run.record_pids()) == set(ALL_GOOD))
        run.launcher.kill()
        run.assert_nothing_left(LIFELINE_TIMEOUT_S)


def test_a_run_that_takes_over_the_directory_of_a_killed_one_is_left_alone_by_its_processes():
    with start_all() as old:
        old.wait_for("stop     Ctrl-C")
        old_pids = old.record_pids()
        os.kill(old_pids["scheduler"], signal.SIGSTOP)
        old.launcher.kill()
        old.launcher.wait()
        with start_all(run_dir=old.run_dir) as new:
            new.wait_for("stop     Ctrl-C")
            wait_until(lambda: not any(map(is_running, old_pids.values())))
            new_pids = new.record_pids()
            assert set(new_pids) == set(ALL_GOOD)
            assert not set(new_pids.values()) & set(old_pids.values())
            new.launcher.send_signal(signal.SIGTERM)
            assert new.wait_exit() == 0
            new.assert_nothing_left()


def test_a_second_launcher_in_the_same_directory_is_refused_and_does_no_harm():
    with start() as run:
        run.wait_for("stop     Ctrl-C")
        with start(run_dir=run.run_dir) as second:
            assert second.wait_exit() == 2
            assert f"another server runs in {run.run_dir.path}" in second.output
            assert all(map(is_running, run.record_pids().values()))
            second._pids.clear()


def test_a_hung_process_is_notified_and_so_is_its_return():
    with start(settings={"hang_timeout_s": HANG_TIMEOUT_S, "restart": ["scheduler=never"]}) as run:
        run.wait_for("stop     Ctrl-C")
        scheduler = run.record_pids()["scheduler"]
        os.kill(scheduler, signal.SIGSTOP)
        run.wait_for("scheduler    hangs: no heartbeat for")
        run.wait_for("scheduler=hung")
        os.kill(scheduler, signal.SIGCONT)
        run.wait_for("scheduler    answers again")
        run.launcher.send_signal(signal.SIGTERM)
        assert run.wait_exit() == 0


def start_by_hand(run: FakeRun) -> subprocess.Popen[bytes]:
    """Runs the command that the launcher has printed for its external process."""
    line = next(line for line in run.output.splitlines() if "PYTHONPATH=" in line)
    words = [word for word in shlex.split(line) if not word.startswith("PYTHONPATH=")]
    return subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_an_external_process_is_started_by_the_printed_command_and_stopped_with_the_others():
    with start(settings={"external": ["scheduler"], "boot_timeout_s": BOOT_TIMEOUT_S}) as run:
        run.wait_for("--run-dir")
        with pytest.raises(AssertionError, match="within"):
            run.wait_for("scheduler cannot start", timeout_s=BOOT_TIMEOUT_S + 2.0)
        by_hand = start_by_hand(run)
        run.wait_for("stop     Ctrl-C")
        assert run.record_pids()["scheduler"] == by_hand.pid
        run.launcher.send_signal(signal.SIGTERM)
        assert by_hand.wait(TIMEOUT_S) == 0
        assert run.wait_exit() == 0
        run.assert_nothing_left()


def test_the_death_of_an_external_process_may_end_the_run_too():
    with start(settings={"external": ["scheduler"], "restart": ["scheduler=never"]}) as run:
        run.wait_for("--run-dir")
        by_hand = start_by_hand(run)
        run.wait_for("stop     Ctrl-C")
        by_hand.kill()
        by_hand.wait(TIMEOUT_S)
        assert run.wait_exit() == 1
        assert "scheduler died: it ended (it was started by hand)" in run.output


def test_an_external_process_that_fails_to_start_may_be_started_again():
    with start(scheduler="stay_in_phase", settings={"external": ["scheduler"]}) as run:
        run.wait_for("--run-dir")
        first = start_by_hand(run)
        run.wait_for("loading weights")
        first.kill()
        first.wait(TIMEOUT_S)
        run.wait_for("scheduler    cannot start: it ended (it was started by hand)")
        second = start_by_hand(run)
        wait_until(lambda: run.record_pids().get("scheduler") == second.pid)
        run.launcher.kill()
        assert second.wait(TIMEOUT_S) is not None
        run.assert_nothing_left(LIFELINE_TIMEOUT_S)


def test_processes_that_do_not_belong_are_refused_with_the_reason():
    with start() as run:
        run.wait_for("stop     Ctrl-C")
        for name, version, reason in (
            ("scheduler", SCHEMA_VERSION + 1, "start both from the same release"),
            ("cook", SCHEMA_VERSION, "this run has no process of that name"),
            ("scheduler", SCHEMA_VERSION, "a scheduler runs already"),
        ):
            client: ControlClient[ToProcess] = ControlClient(run.run_dir.socket("launcher"), name, ToProcess)
            client.send(Hello(name, os.getpid(), version))
            waiter = Waiter()
            waiter.add_channel(client)
            waiter.wait(TIMEOUT_S)
            (answer,) = client.receive()
            assert isinstance(answer, Refusal)
            assert reason in answer.reason
            client.close()
            assert all(map(is_running, run.record_pids().values()))
        run.launcher.send_signal(signal.SIGTERM)
        assert run.wait_exit() == 0
        assert "scheduler    stopping" in run.output
        assert "killed" not in run.output


def test_a_second_process_under_a_name_that_runs_ends_by_itself():
    with start() as run:
        run.wait_for("stop     Ctrl-C")
        command = [sys.executable, str(Path(__file__).with_name("fake_child.py")), "scheduler", GOOD]
        second = subprocess.run(
            [*command, "--run-dir", str(run.run_dir.path)],
            env=environment(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert second.returncode == 1
        assert b"runs in" in second.stderr
        assert b"already" in second.stderr
        run.launcher.send_signal(signal.SIGTERM)
        assert run.wait_exit() == 0


@pytest.mark.parametrize(
    ("external", "last_line"),
    [([], "stop     Ctrl-C"), (["frontend"], "detokenizer  ready")],
    ids=["serving", "waiting"],
)
def test_an_idle_launcher_uses_next_to_no_processor_time(external: list[str], last_line: str):
    with start_all(settings={"external": external}) as run:
        run.wait_for(last_line)
        launcher = psutil.Process(run.launcher.pid)
        before, began_s = sum(launcher.cpu_times()[:2]), time.monotonic()
        wakeups = launcher.num_ctx_switches().voluntary
        with pytest.raises(AssertionError, match="within 3"):
            run.wait_for("never", timeout_s=3.0)
        seconds = time.monotonic() - began_s
        assert (sum(launcher.cpu_times()[:2]) - before) / seconds < 0.1
        wakeups = launcher.num_ctx_switches().voluntary - wakeups
        assert wakeups <= 20 * seconds, "a poll of 20 ms makes 50 a second"
