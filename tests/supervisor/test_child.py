import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from supervisor.child import NUM_LAST_LINES, Child, Command, how_it_ended
from supervisor.output_lines import MAX_LINE_BYTES
from tests.supervisor.fake_run import wait_until

TIMEOUT_S = 90.0


def run_child(code: str, listen_fd: int | None = None) -> tuple[Child, list[str]]:
    """Runs a child to its end; returns it with all lines that it has written."""
    child = Child(Command("child", (sys.executable, "-c", code)))
    child.spawn(Path("/run"), listen_fd)
    lines: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not child.is_silent:
        assert select.select([child.descriptor], [], [], deadline - time.monotonic())[0]
        lines += child.read_output()
    wait_until(child.notice_end)
    child.release()
    return child, lines


def test_output_and_errors_are_lines_and_the_last_ones_are_kept():
    child, lines = run_child("import sys\nfor i in range(100): print(i, file=(sys.stdout, sys.stderr)[i % 2])")
    assert lines == [str(number) for number in range(100)]
    assert list(child.last_lines) == lines[-NUM_LAST_LINES:]
    assert child.ending == "exited with code 0"
    assert child.pid == 0


def test_a_last_line_without_its_end_and_bytes_that_are_no_text_are_shown():
    code = "import os; os.write(1, b'10 %\\r20 %\\r\\n'); os.write(1, b'\\xff'); os.write(1, b'end')"
    assert run_child(code)[1] == ["20 %", "\ufffdend"]


def test_a_line_without_end_is_cut():
    _, lines = run_child(f"import os; os.write(1, b'x' * {3 * MAX_LINE_BYTES})")
    assert "".join(lines) == "x" * 3 * MAX_LINE_BYTES
    assert len(lines) >= 2


def test_a_child_gets_the_run_directory_the_parent_and_a_group_of_its_own():
    _, lines = run_child("import os, sys; print(*sys.argv[1:]); print(os.getpgid(0) == os.getpid(), sys.stdin.read())")
    assert lines == [f"--run-dir /run --parent-pid {os.getpid()}", "True "]


def test_a_child_inherits_the_listening_socket_where_one_is_provided():
    code = "import os, socket; print(socket.socket(fileno=int(os.environ['SLUICE_LISTEN_FD'])).getsockname()[1])"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, lines = run_child(code, listener.fileno())
        assert lines == [str(listener.getsockname()[1])]


def test_each_start_is_a_new_incarnation():
    child = Child(Command("child", (sys.executable, "-c", "print('once')")))
    for incarnation in (1, 2):
        child.spawn(Path("/run"), None)
        assert child.incarnation == incarnation
        assert not child.last_lines
        wait_until(child.notice_end)
        child.read_output()
        assert list(child.last_lines) == ["once"]
        child.release()


def test_a_stopped_process_that_is_killed_ends_as_reported():
    child = Child(Command("child", (sys.executable, "-c", "import signal; signal.pause()")))
    child.spawn(Path("/run"), None)
    os.kill(child.pid, signal.SIGSTOP)
    child.kill(why="hung and was killed")
    wait_until(child.notice_end)
    assert child.ending == "hung and was killed"
    child.release()
    child.spawn(Path("/run"), None)
    child.kill()
    wait_until(child.notice_end)
    assert child.ending == how_it_ended(-signal.SIGKILL)
    child.release()


def test_an_adopted_process_that_is_gone_already_is_noticed():
    gone, _ = run_child("import os; print(os.getpid())")
    child = Child(Command("child", (), is_external=True))
    child.adopt(int(gone.last_lines[0]))
    assert child.notice_end()
    assert not child.notice_end()
    child.release()


def test_the_command_by_hand_is_the_launchers_own():
    child = Child(Command("child", ("python", "-m", "a b")))
    assert child.by_hand(Path("/run")).endswith("python -m 'a b' --run-dir /run")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-signal.SIGKILL, "was killed by SIGKILL (kill -9, or the kernel's out-of-memory killer)"),
        (-signal.SIGTERM, "was killed by SIGTERM"),
        (-signal.SIGSEGV, "was killed by SIGSEGV (a crash in native code)"),
        (-63, "was killed by signal 63"),
    ],
)
def test_endings_are_notified_by_name(code: int, text: str):
    assert how_it_ended(code) == text
