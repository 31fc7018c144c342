"""A process that waits to replace another one with the same name."""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.control.processes import Hello, ProcessTable, StandingBy, Stop, TakeOver, Welcome
from messages.schema import SCHEMA_VERSION
from runtime.process import ProcessLink
from tests.runtime.test_process import Launcher


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        launcher = Launcher(Path(directory) / "run")
        yield launcher
        launcher.close()


def connect(launcher: Launcher) -> ProcessLink:
    """Returns the link of a scheduler that is accepted as the successor of another one."""

    def answer() -> None:
        assert launcher.next() == Hello("scheduler.next", os.getpid(), SCHEMA_VERSION)
        launcher.control.send("scheduler.next", Welcome(2))

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        return ProcessLink("scheduler", launcher.run_dir, is_successor=True)
    finally:
        answering.join()


def test_it_takes_the_place_it_is_provided_and_knows_what_came_before(launcher: Launcher):
    link = connect(launcher)
    assert set(launcher.run_dir.pids()) == {"scheduler.next"}
    launcher.control.send("scheduler.next", ProcessTable(()))
    launcher.control.send("scheduler.next", TakeOver(5))
    assert link.stand_by()
    assert launcher.next() == StandingBy()
    assert link.incarnation == 5
    assert link.receive_control() == [ProcessTable(())]
    assert link.receive_control() == []
    assert link.stand_by(), "it has its place"
    launcher.run_dir.pid_file("scheduler.next").rename(launcher.run_dir.pid_file("scheduler"))
    link.close()
    assert launcher.run_dir.pids() == {}


def test_it_may_have_to_end_without_a_place(launcher: Launcher):
    link = connect(launcher)
    launcher.control.send("scheduler.next", Stop())
    assert not link.stand_by()
    link.close()


def test_it_leaves_the_pid_file_of_its_successor_alone(launcher: Launcher):
    link = launcher.connect()
    launcher.run_dir.pid_file("scheduler").rename(launcher.run_dir.pid_file("scheduler.old"))
    launcher.run_dir.pid_file("scheduler").write_text("17")
    link.close()
    assert launcher.run_dir.pids() == {"scheduler": 17, "scheduler.old": os.getpid()}
