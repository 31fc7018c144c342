import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from messages.errors import BootError
from runtime.lifeline import GRACE_S, clear_run, has_launcher, leave_abandoned_run, make_lifeline, watch_lifeline
from runtime.run_dir import RunDir, claim, other_processes
from tests.supervisor.fake_run import wait_until

SLEEP = "import time; time.sleep(60)"
GUARDED = """
import sys, time
from pathlib import Path
from runtime.lifeline import watch_lifeline
from runtime.run_dir import RunDir
watch_lifeline(RunDir(Path(sys.argv[2])), lambda: print("the launcher is gone", flush=True))
print("watching", flush=True)
time.sleep(60)
"""


@pytest.fixture
def abandoned(tmp_path: Path) -> RunDir:
    run_dir, lock = claim(tmp_path / "run")
    os.close(make_lifeline(run_dir))
    os.close(lock)
    return run_dir


def start(code: str, run_dir: RunDir) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", code, "--run-dir", str(run_dir.path)],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_launcher_is_there_as_long_as_it_holds_the_lifeline(tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    assert not has_launcher(run_dir)
    lifeline = make_lifeline(run_dir)
    assert has_launcher(run_dir)
    os.close(lifeline)
    assert not has_launcher(run_dir)
    os.close(lock)


def test_a_process_that_ignores_the_end_of_its_launcher_is_ended_with_its_siblings(tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    lifeline = make_lifeline(run_dir)
    guarded, sibling = start(GUARDED, run_dir), start(SLEEP, run_dir)
    run_dir.pid_file("sibling").write_text(str(sibling.pid))
    wait_until(lambda: bool(other_processes(run_dir)))
    os.kill(sibling.pid, signal.SIGSTOP)
    assert guarded.stdout is not None
    assert sibling.stdout is not None
    assert guarded.stdout.readline() == "watching\n"
    os.close(lifeline)
    os.close(lock)
    began_s = time.monotonic()
    assert guarded.stdout.readline() == "the launcher is gone\n"
    assert guarded.wait(30) == sibling.wait(30) == -signal.SIGKILL
    assert time.monotonic() - began_s > GRACE_S / 2
    assert not run_dir.path.exists()
    guarded.stdout.close()
    sibling.stdout.close()


def test_a_process_that_comes_too_late_clears_the_run(abandoned: RunDir):
    with pytest.raises(BootError, match="is gone"):
        watch_lifeline(abandoned, lambda: None)
    assert not abandoned.path.exists()


def test_a_directory_without_a_run_is_left_alone(tmp_path: Path):
    (tmp_path / "letter").touch()
    with pytest.raises(BootError, match="no launcher runs in"):
        watch_lifeline(RunDir(tmp_path), lambda: None)
    clear_run(RunDir(tmp_path))
    assert (tmp_path / "letter").exists()


def test_a_run_that_a_new_launcher_has_taken_over_is_left_alone(abandoned: RunDir):
    _, lock = claim(abandoned.path)
    clear_run(abandoned)
    assert abandoned.path.exists()
    os.close(lock)
    clear_run(abandoned)
    assert not abandoned.path.exists()


def test_the_last_to_leave_an_abandoned_run_waits_for_the_others_but_not_for_ever(abandoned: RunDir):
    sibling = start(SLEEP, abandoned)
    abandoned.pid_file("sibling").write_text(str(sibling.pid))
    wait_until(lambda: bool(other_processes(abandoned)))
    began_s = time.monotonic()
    leave_abandoned_run(abandoned)
    assert time.monotonic() - began_s > GRACE_S / 2
    assert sibling.wait(30) == -signal.SIGKILL
    assert sibling.stdout is not None
    sibling.stdout.close()
    assert not abandoned.path.exists()
