"""A process that is begun before the run, here a Python that writes its instructions in place of the scheduler's."""

import json
import os
import select
import socket
import sys
from pathlib import Path

import pytest

from messages.channels import Waiter
from runtime.run_dir import RunDir
from supervisor import early_scheduler
from supervisor.child import Child, Command
from supervisor.early_scheduler import COMMAND, EarlyScheduler
from supervisor.flags import parse_flags
from supervisor.process_group import ProcessGroup, Site
from supervisor.run import check_flags, launch, server_commands
from supervisor.signals import SignalPipe
from tests.supervisor.fake_run import wait_until

TIMEOUT_S = 60.0
ECHO = "import sys; print('early', sys.argv[1:]); print(sys.stdin.read())"
END = "import sys; sys.exit(3)"


def begin(monkeypatch: pytest.MonkeyPatch, code: str) -> EarlyScheduler:
    monkeypatch.setattr(early_scheduler, "COMMAND", (sys.executable, "-c", code))
    return EarlyScheduler()


def pid_of(early: EarlyScheduler) -> int:
    assert early._process is not None
    return early._process.pid


def read_all(child: Child) -> list[str]:
    lines: list[str] = []
    while not child.is_silent:
        assert select.select([child.descriptor], [], [], TIMEOUT_S)[0]
        lines += child.read_output()
    wait_until(child.notice_end)
    child.release()
    return lines


@pytest.fixture
def child() -> Child:
    late = "import sys; print('late', sys.argv[1:])"
    return Child(Command("scheduler", (sys.executable, "-P", "-c", late)))


def test_it_continues_as_the_process_with_its_command_line(monkeypatch: pytest.MonkeyPatch, child: Child) -> None:
    early = begin(monkeypatch, ECHO)
    pid = pid_of(early)
    child.spawn(Path("/run"), None, early)
    assert child.is_early
    assert child.pid == pid
    assert os.getpgid(pid) == pid, "Ctrl-C reaches the launcher alone"
    early.end()
    provided = json.dumps([child.command.arguments[3], "--run-dir", "/run", "--parent-pid", f"{os.getpid()}"])
    assert read_all(child) == [f"early ['--early', '{os.getpid()}']", provided]
    assert child.ending == "exited with code 0"
    child.spawn(Path("/run"), None, early)
    assert not child.is_early
    assert read_all(child)[0].startswith("late"), "each one after it is started as ever"


def test_one_that_has_ended_is_replaced(monkeypatch: pytest.MonkeyPatch, child: Child) -> None:
    early = begin(monkeypatch, END)
    wait_until(lambda: early._process is not None and early._process.poll() is not None)
    child.spawn(Path("/run"), None, early)
    assert read_all(child)[0].startswith("late")
    early.end()


def test_where_the_run_does_not_begin_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    early = begin(monkeypatch, ECHO)
    pid = pid_of(early)
    assert launch(["--nonsense"], early) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    early.end()


def test_it_becomes_the_scheduler_of_this_machine_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Offered:
        """In place of an early process: what is started."""

    offers: dict[str, object] = {}
    monkeypatch.setattr(Child, "spawn", lambda child, path, fd, early: offers.update({child.name: early}))
    early = Offered()
    commands = [
        *server_commands(check_flags(parse_flags(["--data-parallel", "2", "--tensor-parallel", "2"]))),
        Command("scheduler-3", ("proxy",), is_remote=True),
    ]
    with SignalPipe() as signals, socket.socket() as listener:
        site = Site(RunDir(tmp_path), listener, signals, early_scheduler=early)  # pyright: ignore[reportArgumentType]
        group = ProcessGroup(commands, site, Waiter(), hang_timeout_s=10.0)
        for one in group:
            group.spawn(one)
        group.control.close()
        group.memory_files.close()
    assert [name for name, offered in offers.items() if offered is early] == ["scheduler"]
    assert COMMAND in [command.arguments for command in commands]
