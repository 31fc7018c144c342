"""A command with a time limit: how it ended, the end of what it printed, and that nothing of it is left."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.timed_command import NUM_LAST_LINES, ROOT, run_command

DEADLINE_S = 30.0


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def test_the_end_of_the_output_is_kept_and_all_of_it_is_copied() -> None:
    output = io.StringIO()
    outcome = run_command(python("for i in range(100): print('line', i)"), DEADLINE_S, output)
    assert (outcome.is_ok, outcome.reason) == (True, "")
    assert outcome.last_lines == tuple(f"line {i}" for i in range(100 - NUM_LAST_LINES, 100))
    assert output.getvalue().splitlines() == [f"line {i}" for i in range(100)]


def test_how_it_ended_is_told() -> None:
    failed = run_command(python("import sys; sys.exit('it broke')"), DEADLINE_S, io.StringIO())
    assert (failed.reason, failed.last_lines) == ("exit code 1", ("it broke",))
    killed = run_command(python("import os; print('so far', flush=True); os.kill(os.getpid(), 9)"), 30, io.StringIO())
    assert (killed.reason, killed.last_lines) == ("killed by SIGKILL", ("so far",))


def test_at_the_limit_it_is_ended_with_its_children() -> None:
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(child.pid, flush=True); time.sleep(600)"
    )
    outcome = run_command(python(code), 3.0, io.StringIO())
    assert outcome.reason == "stopped after 3 s"
    assert_ended(int(outcome.last_lines[-1]))


def test_a_child_that_outlives_it_is_ended() -> None:
    code = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
    )
    outcome = run_command(python(code), DEADLINE_S, io.StringIO())
    assert outcome.is_ok
    assert_ended(int(outcome.last_lines[-1]))


def test_sigterm_ends_what_runs(tmp_path: Path) -> None:
    """As `timeout` sends it: the command must not keep using the GPU after the run has ended."""
    pid_file = tmp_path / "pid"
    inner = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    code = (
        "import sys; from benchmarks.timed_command import exit_on_signals, run_command; exit_on_signals(); "
        f"run_command([sys.executable, '-c', {inner!r}], 600, sys.stdout)"
    )
    process = subprocess.Popen(python(code), cwd=ROOT)
    end_s = time.monotonic() + DEADLINE_S
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < end_s, "it did not start"
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert_ended(int(pid_file.read_text()))


def test_variables_are_added_to_the_environment() -> None:
    code = "import os; print(os.environ['ONE_MORE'], os.environ['PATH'])"
    outcome = run_command(python(code), DEADLINE_S, io.StringIO(), {"ONE_MORE": "yes"})
    assert outcome.last_lines == (f"yes {os.environ['PATH']}",)


def assert_ended(pid: int) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end_s, f"process {pid} is still there"
        time.sleep(0.02)
