"""Commands across process borders: instructions to a process, and questions to the launcher."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messages.channels import AskClient, AskServer, Waiter
from messages.control.admin import (
    Acknowledged,
    Answer,
    Ask,
    Done,
    Failed,
    Instruction,
    InstructionDone,
    InstructProcesses,
    ListProcesses,
    ProcessResult,
    ReadLog,
    SetLogLevel,
)
from messages.errors import BootError
from runtime.process import ProcessLink
from tests.runtime.test_process import TIMEOUT_S, Launcher


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def launcher(directory: Path) -> Iterator[Launcher]:
    launcher = Launcher(directory / "run")
    yield launcher
    launcher.close()


def report_progress(launcher: Launcher, link: ProcessLink, command: SetLogLevel) -> Any:
    """Returns the process's answer to an instruction."""
    launcher.control.send("scheduler", Instruction(5, command))
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        link.wait(0.02)
        assert link.receive_control() == []
        for _, message in launcher.control.receive():
            assert isinstance(message, InstructionDone)
            assert message.instruction_id == 5
            return message.result
    raise AssertionError("no answer")


def execute(command: SetLogLevel) -> ProcessResult:
    if command.level == "warning":
        raise BootError("not that")
    if command.level == "error":
        raise ValueError("a bug")
    return Acknowledged(command.level)


def test_a_process_carries_out_what_it_has_taken_on(launcher: Launcher):
    link = launcher.connect()
    unknown = Failed("impossible", "the scheduler does not support SetLogLevel")
    assert report_progress(launcher, link, SetLogLevel("info")) == unknown
    link.register(SetLogLevel, execute)
    assert report_progress(launcher, link, SetLogLevel("info")) == Acknowledged("info")
    assert report_progress(launcher, link, SetLogLevel("warning")) == Failed("failed", "not that")
    assert report_progress(launcher, link, SetLogLevel("error")) == Failed("failed", "ValueError: a bug")
    link.close()


def test_a_process_asks_its_launcher(launcher: Launcher):
    link = launcher.connect()
    link.ask(3, ListProcesses())
    assert launcher.next() == Ask(3, ListProcesses())
    launcher.control.send("scheduler", Answer(3, Done("yes")))
    deadline = time.monotonic() + TIMEOUT_S
    while not (commands := link.receive_control()):
        assert time.monotonic() < deadline
        link.wait(0.05)
    assert commands == [Answer(3, Done("yes"))]
    link.close()


def test_each_asker_gets_its_own_answer(directory: Path):
    server: AskServer[Ask] = AskServer(directory / "o.sock", Ask)
    clients: list[AskClient[Answer]] = [AskClient(directory / "o.sock", Answer) for _ in range(3)]
    command = InstructProcesses(("a", "b"), SetLogLevel("debug"), 1.5)
    for number, client in enumerate(clients):
        client.ask(Ask(number, command if number else ReadLog("a", after=4, wait_s=0.5)))
    askers: dict[int, bytes] = {}
    waiter = Waiter()
    waiter.add_channel(server)
    while len(askers) < len(clients):
        waiter.wait(TIMEOUT_S)
        for asker, ask in server.receive():
            assert ask.command == (command if ask.ask_id else ReadLog("a", after=4, wait_s=0.5))
            askers[ask.ask_id] = asker
    for number in reversed(askers):
        server.send_to(askers[number], Answer(number, Done(f"to {number}")))
    for number, client in enumerate(clients):
        waiter = Waiter()
        waiter.add_channel(client)
        waiter.wait(TIMEOUT_S)
        assert list(client.receive()) == [Answer(number, Done(f"to {number}"))]
        client.close()
    server.send_to(askers[0], Answer(0, Done("the client has gone")))
    server.close()
