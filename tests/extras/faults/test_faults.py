import os
import queue
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extras.faults.faults import Faults, PoisonedStepError
from extras.faults.messages import ClearFaults, DamagePages, EdgeFault, Poison, Starve, StopReading
from messages.channels import Receiver, Waiter
from messages.columns import pack_int32, pack_int64
from messages.errors import SluiceError
from messages.ring.requests import FramesLost, StopSeen, ToScheduler
from messages.ring.steps import Batch, ForwardOutput
from runtime.run_dir import RunDir

TIMEOUT_S = 90.0


@pytest.fixture
def run_dir() -> Iterator[RunDir]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        yield RunDir(Path(directory))


@pytest.fixture
def edge(run_dir: RunDir) -> Iterator["Edge"]:
    edge = Edge(run_dir)
    yield edge
    edge.sender.close()
    edge.receiver.close()


class Edge:
    """A sender with faults, and its receiver."""

    def __init__(self, run_dir: RunDir):
        self.faults = Faults(run_dir)
        self.sender = self.faults.open_sender(run_dir, "scheduler")
        self.receiver: Receiver[Any] = Receiver(run_dir.socket("scheduler"), ToScheduler)
        self._waiter = Waiter()
        self._waiter.add_channel(self.receiver)

    def send(self, *uids: int) -> None:
        for uid in uids:
            self.sender.send(StopSeen(uid, 0))

    def take_until(self, uid: int) -> list[Any]:
        """Returns uids, and "lost" for a loss, up to `uid`."""
        found: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        while uid not in found:
            assert time.monotonic() < deadline, found
            self._waiter.wait(0.5)
            found += ["lost" if isinstance(one, FramesLost) else one.uid for one in self.receiver.receive()]
        return found


def test_the_next_frames_are_dropped(edge: Edge):
    edge.send(1)
    edge.faults.fault_edge(EdgeFault("scheduler", "drop", num_frames=2))
    edge.send(2, 3, 4, 5)
    assert edge.take_until(5) == [1, "lost", 4, 5]


def test_doubled_frames_come_once(edge: Edge):
    edge.faults.fault_edge(EdgeFault("scheduler", "duplicate", probability=1.0))
    edge.send(1, 2, 3)
    edge.faults.clear(ClearFaults())
    edge.send(4)
    assert edge.take_until(4) == [1, 2, 3, 4]


def test_a_corrupted_frame_is_a_lost_one(edge: Edge):
    edge.faults.fault_edge(EdgeFault("scheduler", "corrupt"))
    edge.send(1, 2)
    assert edge.take_until(2) == ["lost", 2]


def test_delayed_frames_keep_their_order(edge: Edge):
    edge.faults.fault_edge(EdgeFault("scheduler", "delay", delay_s=4.0))
    began_s = time.monotonic()
    edge.send(1, 2, 3)
    assert time.monotonic() - began_s < 10.0, "a sender that waits takes 12 s"
    assert edge.take_until(3) == [1, 2, 3]
    assert time.monotonic() - began_s >= 4.0


def test_a_process_has_only_its_own_edges(edge: Edge):
    with pytest.raises(SluiceError, match="only to scheduler"):
        edge.faults.fault_edge(EdgeFault("frontend", "drop"))


def batch(uids: list[int], token_ids: list[int]) -> Batch:
    columns = dict.fromkeys(Batch.__struct_fields__, b"")
    fields: dict[str, Any] = {**columns, "step_id": 1, "num_decode_rows": 0, "num_pages_per_row": 0}
    return Batch(**{**fields, "uids": pack_int64(uids), "token_ids": pack_int32(token_ids)})


def run(batch: Batch) -> ForwardOutput:
    return ForwardOutput(batch.step_id, b"")


def test_a_step_with_poison_in_it_raises_and_no_other(run_dir: RunDir):
    faults = Faults(run_dir)
    poisoned = faults.poisoned(run)
    faults.poison(Poison("fail", uid=7))
    faults.poison(Poison("fail", token_ids=pack_int32([1, 2])))
    poisoned(batch([8], [2, 1, 256, 512, 0]))  # the bytes of (1, 2) are in it, but not at a token's beginning
    for bad in (batch([8, 7], [5]), batch([8], [5, 1, 2])):
        with pytest.raises(PoisonedStepError):
            poisoned(bad)
    faults.clear(ClearFaults())
    poisoned(batch([7], [1, 2]))


def test_a_successor_knows_the_poison(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    first = Faults(run_dir)
    first.poisoned(run)
    first.poison(Poison("kill", uid=7))
    killed: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
    second = Faults(run_dir).poisoned(run)
    with pytest.raises(PoisonedStepError):
        second(batch([7], [1]))
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_poison_is_for_a_process_with_steps(run_dir: RunDir):
    with pytest.raises(SluiceError, match="no steps"):
        Faults(run_dir).poison(Poison("kill", uid=7))


def test_only_a_process_with_steps_writes_what_is_poison(run_dir: RunDir):
    scheduler = Faults(run_dir)
    scheduler.poisoned(run)
    scheduler.poison(Poison("fail", uid=7))
    before = {file: file.read_bytes() for file in run_dir.black_box.iterdir()}
    Faults(run_dir).clear(ClearFaults())
    assert {file: file.read_bytes() for file in run_dir.black_box.iterdir()} == before


def test_a_process_that_does_not_receive_finds_its_messages_when_it_does_again(edge: Edge):
    edge.faults.receivers.append(edge.receiver)
    edge.faults.stop_reading(StopReading())
    edge.send(1, 2)
    edge._waiter.wait(TIMEOUT_S)
    assert list(edge.receiver.receive()) == []
    edge.faults.clear(ClearFaults())
    assert edge.take_until(2) == [1, 2]


def test_starvation_is_for_the_scheduler_and_can_be_taken_back(run_dir: RunDir):
    faults = Faults(run_dir)
    with pytest.raises(SluiceError, match="for the scheduler"):
        faults.starve(Starve())
    faults.poisoned(lambda batch: None)
    faults.starve(Starve(7))
    assert faults.starved == {7}
    faults.clear(ClearFaults())
    assert faults.starved == set()


def test_a_frontend_cannot_stop_receiving(run_dir: RunDir):
    assert StopReading not in Faults(run_dir).executors("frontend")
    assert StopReading in Faults(run_dir).executors("scheduler")


def test_a_scheduler_whose_pages_outlive_it_damages_some_and_dies(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    faults = Faults(run_dir)
    with pytest.raises(SluiceError, match="--keep-kv-cache"):
        faults.die_of_damage(DamagePages())
    done: queue.Queue[object] = queue.Queue()
    monkeypatch.setattr(os, "kill", lambda *arguments: done.put(arguments))
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(os, "_exit", done.put)
    faults.damage_pages = done.put
    faults.die_of_damage(DamagePages(3))
    assert done.get(timeout=TIMEOUT_S) == (os.getpid(), signal.SIGSTOP), "first, so that no token of it gets out"
    assert done.get(timeout=TIMEOUT_S) == 3
    assert done.get(timeout=TIMEOUT_S) == (os.getpid(), signal.SIGKILL)
    assert done.get(timeout=TIMEOUT_S) == 0
