"""Stacks of a process that hangs, and of one that dies in native code."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.run_dir import RunDir
from runtime.stacks import ask_for_stacks
from tests.supervisor.fake_run import environment, wait_until

PROGRAM = """
import sys, threading
from pathlib import Path
from runtime.run_dir import RunDir
from runtime.stacks import write_stacks_on_signal

def hang_in_c():
    sum(range(10**15))  # holds the interpreter's lock, and runs no Python code

threading.Thread(target=threading.Event().wait, daemon=True).start()
write_stacks_on_signal(RunDir(Path(sys.argv[1])))
hang_in_c()
"""


@pytest.fixture
def run_dir() -> Iterator[RunDir]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        yield RunDir(Path(directory))


def test_a_process_that_hangs_in_c_writes_the_stacks_of_all_its_threads(run_dir: RunDir):
    arguments = [sys.executable, "-c", PROGRAM, str(run_dir.path)]
    with subprocess.Popen(arguments, env=environment()) as process:
        try:
            path = run_dir.stacks_file(process.pid)
            wait_until(path.exists)
            for _ in range(2):  # a second request replaces the first stacks
                assert ask_for_stacks(run_dir, process.pid)
                wait_until(lambda: path.read_text().lower().count("thread 0x") == 2)
            assert "hang_in_c" in path.read_text()
            process.send_signal(signal.SIGSEGV)
            assert process.wait(60) == -signal.SIGSEGV
            assert "Fatal Python error: Segmentation fault" in path.read_text()
        finally:
            process.kill()


def test_a_process_that_has_not_come_so_far_is_not_signalled(run_dir: RunDir):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not ask_for_stacks(run_dir, process.pid)
        process.communicate(b"\n", timeout=60)
        assert process.returncode == 0
