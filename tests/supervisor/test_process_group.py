import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messages.channels import ControlClient, Waiter
from messages.control.processes import (
    Drain,
    Drained,
    Hello,
    Leave,
    ProcessTable,
    TakeOver,
    ToProcess,
    Welcome,
)
from messages.schema import SCHEMA_VERSION
from runtime.run_dir import RunDir
from supervisor.child import Child, Command
from supervisor.process_group import ProcessGroup, Site
from supervisor.signals import SignalPipe

TIMEOUT_S = 90.0


class Member:
    """A sleeping process, and the control channel that it would have."""

    def __init__(self, group: ProcessGroup, child: Child, run_dir: RunDir):
        self.process = subprocess.Popen(["sleep", "600"])
        self.client: ControlClient[ToProcess] = ControlClient(run_dir.socket("launcher"), child.name, ToProcess)
        # `ControlClient` names itself by the pid of the test, so the group gets that pid.
        self.pid = os.getpid()
        group.adopt(child, self.process.pid)
        self.client.send(Hello(child.name, self.pid, SCHEMA_VERSION))
        receive(group)
        child.is_welcome = True
        group.control.welcome(child.name, self.pid, Welcome(child.incarnation, child.uid_block))
        run_dir.pid_file(child.name).write_text(f"{self.process.pid}")

    def wait_for(self, kind: type[Any]) -> Any:
        """Returns the next message of this kind."""
        waiter = Waiter()
        waiter.add_channel(self.client)
        for _ in range(100):
            for message in self.client.receive():
                if isinstance(message, kind):
                    return message
            waiter.wait(TIMEOUT_S / 100)
        raise AssertionError(f"no {kind.__name__} has come")

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


def receive(group: ProcessGroup) -> list[tuple[str, Any]]:
    """Returns what has arrived at the control plane, once there is something."""
    group.control.wait(TIMEOUT_S)
    return list(group.control.receive(from_anybody=Hello))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def group(run_dir: RunDir) -> Iterator[ProcessGroup]:
    commands = [Command(name, ("true",), is_external=True) for name in ("frontend", "frontend-2", "tokenizer")]
    with SignalPipe() as signals, socket.socket() as listener:
        group = ProcessGroup(commands, Site(run_dir, listener, signals), Waiter(), hang_timeout_s=10.0)
        yield group
        for child in group:
            group.close_output(child)
        group.control.close()


@pytest.fixture
def members(group: ProcessGroup, run_dir: RunDir) -> Iterator[dict[str, Member]]:
    members = {child.name: Member(group, child, run_dir) for child in group}
    yield members
    for member in members.values():
        member.close()


def find(group: ProcessGroup, name: str) -> Child:
    child = group.find(name)
    assert child is not None
    return child


def test_processes_are_found_by_name_until_they_are_removed(group: ProcessGroup):
    worker = Child(Command("tokenizer-2", ("true",)))
    group.add(worker)
    assert "tokenizer-2" in group
    assert group.state(worker) == "starting"
    assert [status.name for status in group.board.statuses()] == ["frontend", "frontend-2", "tokenizer", "tokenizer-2"]
    group.remove(worker)
    assert group.find("tokenizer-2") is None
    assert group.names() == ["frontend", "frontend-2", "tokenizer"]
    assert group.state(worker) == "dead"


def test_processes_may_go_while_all_are_looked_at(group: ProcessGroup):
    for child in group:
        group.remove(child)
    assert not list(group)


def test_a_frontend_in_passing_has_no_place_of_its_own(group: ProcessGroup):
    group.add(Child.successor_of(find(group, "frontend")))
    assert [child.name for child in group.frontends()] == ["frontend", "frontend-2"]


def test_each_start_of_a_frontend_has_a_block_of_uids_of_its_own(group: ProcessGroup, members: dict[str, Member]):
    assert [child.uid_block for child in group] == [1, 2, 0]


def test_frontends_receive_the_table_and_others_do_not(group: ProcessGroup, members: dict[str, Member]):
    group.publish(at_once=True)
    for name in ("frontend", "frontend-2"):
        table = members[name].wait_for(ProcessTable)
        assert [status.name for status in table.processes] == ["frontend", "frontend-2", "tokenizer"]
    members["tokenizer"].wait_for(Welcome)
    assert not [message for message in members["tokenizer"].client.receive() if isinstance(message, ProcessTable)]


def test_no_one_is_notified_the_table_while_no_frontend_listens(group: ProcessGroup):
    assert group.table_due_in_s() == float("inf")


def test_the_group_has_drained_when_every_frontend_has(group: ProcessGroup, members: dict[str, Member]):
    group.begin_drain(7.0)
    assert group.is_draining
    for name, num_unfinished in (("frontend", 2), ("frontend-2", 3)):
        assert not group.has_drained()
        assert members[name].wait_for(Drain) == Drain(7.0)
        group.control.record(name, Drained(num_unfinished))
    assert group.has_drained()
    assert group.num_unfinished() == 5


def test_a_successor_gets_the_name_and_the_one_before_it_becomes_its_predecessor(
    group: ProcessGroup, members: dict[str, Member], run_dir: RunDir
):
    child = find(group, "tokenizer")
    successor = Child.successor_of(child)
    group.add(successor)
    members[successor.name] = Member(group, successor, run_dir)
    group.give_place(successor, child)
    assert find(group, "tokenizer") is successor
    assert find(group, "tokenizer.old") is child
    assert run_dir.pids()["tokenizer"] == successor.pid
    assert members["tokenizer.next"].wait_for(TakeOver) == TakeOver(successor.incarnation)
    group.control.drain("tokenizer.old", Leave(3.0))
    assert members["tokenizer"].wait_for(Leave) == Leave(3.0)


def test_a_frontend_about_to_leave_must_go_before_the_group_has_drained(
    group: ProcessGroup, members: dict[str, Member], run_dir: RunDir
):
    child = find(group, "frontend")
    successor = Child.successor_of(child)
    group.add(successor)
    members[successor.name] = Member(group, successor, run_dir)
    group.give_place(successor, child)
    group.begin_drain(1.0)
    for frontend in group.frontends():
        group.control.record(frontend.name, Drained())
    assert not group.has_drained()
    group.remove(child)
    assert group.has_drained()


def fail(*_: object, **__: object) -> None:
    raise OSError(24, "Too many open files")


def test_no_disk_is_in_the_way_of_a_process(group: ProcessGroup, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    sleeper = Child(Command("sleeper", ("sleep", "600")))
    group.add(sleeper)
    for name in ("write_text", "rename", "unlink"):
        monkeypatch.setattr(Path, name, fail)
    group.spawn(sleeper)
    sleeper.kill()
    sleeper.wait(TIMEOUT_S)
    assert sleeper.notice_end()
    group.remove_files(sleeper)
    group.close_output(sleeper)
    group.remove(sleeper)


def test_a_process_that_can_have_no_file_is_not_part_of_the_run(group: ProcessGroup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "symlink_to", fail)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Too many open files"):
        group.add(Child(Command("scheduler", ("true",))))
    assert "scheduler" not in group
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
    monkeypatch.undo()
    group.add(Child(Command("scheduler", ("true",))))
    group.remove(find(group, "scheduler"))
