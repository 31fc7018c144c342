"""Processes that are forked, here from a forked process of the test that reports through a pipe."""

import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.forked_process import ForkedProcess, fork, open_process
from runtime.lifeline import ask_for_death_signal

# Python 3.12 warns of the threads of the test process.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

TIMEOUT_S = 90.0
ENVIRONMENT = {**os.environ, "MARK": "forked"}

PROGRAM = """
import json, os, random, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "mark": os.environ.get("MARK"), "input": sys.stdin.read(),
    "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "wakeup": signal.set_wakeup_fd(-1),
    "group": os.getpgid(0) == os.getpid(), "files": [fd for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")],
    "random": random.random(),
}))
print("error", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "forked_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "forked_program"


def start(module: str, *arguments: str, **options: Any) -> ForkedProcess:
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "env": ENVIRONMENT, **options}
    return ForkedProcess([sys.executable, "-P", "-m", module, *arguments], **options)


def read_report(process: ForkedProcess) -> tuple[dict[str, Any], bytes]:
    """Returns what the program printed, and what came after it."""
    line, _, rest = process.stdout.read().partition(b"\n")
    assert process.wait(TIMEOUT_S) == 7
    process.stdout.close()
    return json.loads(line), rest


def run_in_fork(main: Callable[[], object], *kept: int) -> tuple[str, int]:
    """Returns the output and the status of a forked process."""
    reader, writer = os.pipe()
    pid = fork(main, "a test", (0, writer, writer), kept)
    os.close(writer)
    with os.fdopen(reader) as output:
        text = output.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_module_runs_as_if_it_had_been_started_as_a_program(module: str):
    process = start(module, "--run-dir", "/run", stderr=subprocess.STDOUT, process_group=0)
    report, rest = read_report(process)
    assert rest == b"error\n"
    assert report["argv"] == ["--run-dir", "/run"]
    assert report["name"] == "__main__"
    assert report["mark"] == "forked"
    assert report["input"] == ""
    assert report["group"]


def test_a_module_that_has_been_imported_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "forked_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "child.py").write_text("import sys\nif __name__ == '__main__':\n    print('again')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("forked_package.child")
    process = start("forked_package.child", stderr=subprocess.STDOUT)
    assert process.stdout.read() == b"again\n"
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


def test_it_gives_up_the_signal_handlers_of_its_parent(module: str):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before, wakeup = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(writer)
    try:
        report, _ = read_report(start(module))
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        os.close(reader)
        os.close(writer)
    assert report["sigterm"]
    assert report["wakeup"] == -1


def test_it_has_only_its_streams_and_the_descriptors_for_it(module: str):
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    try:
        report, _ = read_report(start(module, pass_fds=[kept[2], kept[0]]))
    finally:
        for descriptor in kept:
            os.close(descriptor)
    assert report["files"] == [0, 1, 2, kept[0], kept[2]]


def test_it_gets_input_and_has_random_numbers_of_its_own(module: str):
    state = random.getstate()
    processes = [start(module, stdin=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"hello")
        process.stdin.close()
    first, second = (read_report(process)[0] for process in processes)
    assert first["input"] == second["input"] == "hello"
    assert first["random"] != second["random"]
    assert random.getstate() == state


def test_its_command_line_is_shown():
    reader, writer = os.pipe()
    started, begin = os.pipe()

    def main() -> None:
        print("started")
        sys.stdin.read(1)

    pid = fork(main, "python -m scheduler_proc --run-dir /run", (reader, begin, 2))
    os.close(begin)
    try:
        assert os.read(started, 8) == b"started\n"
        assert "".join(psutil.Process(pid).cmdline()) == "python -m scheduler_proc --run-dir /run"
    finally:
        for descriptor in (writer, reader, started):
            os.close(descriptor)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit('why')", 1),
        ("1 / 0", 1),
        ("pass", 0),
        ("import os; os._exit(4)", 4),
        ("import atexit; atexit.register(print, 5)", 0),
    ],
)
def test_ends_have_the_exit_codes_of_programs(code: str, status: int):
    text, ended = run_in_fork(lambda: exec(code))
    assert ended == status
    assert ("ZeroDivisionError" in text) == ("/" in code)
    assert (text == "5\n") == ("atexit" in code)


def test_nothing_of_the_parent_continues_in_a_fork():
    """An exception ends the fork; it never reaches the code that called `fork`."""
    own_pid = os.getpid()
    try:
        text, status = run_in_fork(lambda: sys.exit(3))
    finally:
        assert os.getpid() == own_pid
    assert (text, status) == ("", 3)


def test_a_killed_one_is_noticed(module: str):
    process = start(module, stdin=subprocess.PIPE)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.kill()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    process.kill()  # a no-op
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()


def test_only_forked_processes_fork_their_programs(module: str):
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "env": ENVIRONMENT}
    command = [sys.executable, "-P", "-m", module]
    path = {**ENVIRONMENT, "PYTHONPATH": str(Path(sys.path[0]))}

    def main() -> None:
        process = open_process(command, **options)
        print(type(process).__name__, process.wait(TIMEOUT_S))

    assert run_in_fork(main) == ("error\nForkedProcess 7\n", 0)
    with open_process(command, **{**options, "env": path, "stderr": subprocess.DEVNULL}) as process:  # pyright: ignore
        assert isinstance(process, subprocess.Popen)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 7


def test_it_can_die_with_its_parent():
    """The parent is a fork, too, and ends while its own child waits."""

    def middle() -> None:
        own_pid = os.getpid()

        def last() -> None:
            ask_for_death_signal(own_pid, signal.SIGKILL)
            print(os.getpid())
            time.sleep(TIMEOUT_S)

        fork(last, "last", (0, 1, 2))
        sys.stdin.read(1)

    reader, writer = os.pipe()
    begin, end = os.pipe()
    middle_pid = fork(middle, "middle", (begin, writer, writer))
    os.close(writer)
    os.close(begin)
    with os.fdopen(reader) as output:
        last_pid = int(output.readline())
        descriptor = os.pidfd_open(last_pid)
        os.kill(middle_pid, signal.SIGKILL)
        os.waitpid(middle_pid, 0)
        assert select.select([descriptor], [], [], TIMEOUT_S)[0]
    os.close(descriptor)
    os.close(end)
