import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.channels import ControlClient, Waiter
from messages.control.admin import (
    Acknowledged,
    Answer,
    Ask,
    Done,
    Instruction,
    InstructionDone,
    ListProcesses,
    SetLogLevel,
)
from messages.control.processes import Drain, Drained, Ready, Refusal, ToProcess, Welcome
from supervisor.control_plane import ControlPlane

TIMEOUT_S = 90.0


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlPlane]:
    control = ControlPlane(tmp_path / "launcher.sock")
    yield control
    control.close()


@pytest.fixture
def client(control: ControlPlane, tmp_path: Path) -> Iterator[ControlClient[ToProcess]]:
    """A process that has reported once, so that it is known."""
    client: ControlClient[ToProcess] = ControlClient(tmp_path / "launcher.sock", "scheduler", ToProcess)
    client.send(Ready())
    control.wait(TIMEOUT_S)
    assert list(control.receive()) == [("scheduler", Ready())]
    yield client
    client.close()


def receive(client: ControlClient[ToProcess]) -> list[ToProcess]:
    waiter = Waiter()
    waiter.add_channel(client)
    waiter.wait(TIMEOUT_S)
    return list(client.receive())


def test_a_process_is_welcomed_or_refused_by_its_pid(control: ControlPlane, client: ControlClient[ToProcess]):
    control.refuse("scheduler", os.getpid(), "no")
    assert receive(client) == [Refusal("no")]
    control.welcome("scheduler", os.getpid(), Welcome(3))
    assert receive(client) == [Welcome(3)]


def test_a_new_drain_forgets_the_report_of_the_one_before(control: ControlPlane, client: ControlClient[ToProcess]):
    control.record("scheduler", Drained(4))
    assert control.has_drained("scheduler")
    assert control.num_unfinished("scheduler") == 4
    control.drain("scheduler", Drain(1.0))
    assert not control.has_drained("scheduler")
    assert control.num_unfinished("scheduler") == 0


def test_what_a_process_requests_is_provided_out_once_and_answered_where_it_came_from(
    control: ControlPlane, client: ControlClient[ToProcess]
):
    control.record("scheduler", Ask(5, ListProcesses()))
    ((connection, ask),) = control.pop_asks()
    assert control.pop_asks() == []
    control.send_to(connection, Answer(ask.ask_id, Done("so it is")))
    assert receive(client) == [Answer(5, Done("so it is"))]


def test_the_result_of_an_instruction_is_there_until_no_one_waits_for_it(
    control: ControlPlane, client: ControlClient[ToProcess]
):
    instruction_id = control.instruct("scheduler", SetLogLevel("debug"))
    assert receive(client) == [Instruction(instruction_id, SetLogLevel("debug"))]
    assert control.find_result(instruction_id) is None
    control.record("scheduler", InstructionDone(instruction_id, Acknowledged("done")))
    assert control.find_result(instruction_id) == Acknowledged("done")
    control.forget_instruction(instruction_id)
    control.record("scheduler", InstructionDone(instruction_id, Acknowledged("too late")))
    assert control.find_result(instruction_id) is None
