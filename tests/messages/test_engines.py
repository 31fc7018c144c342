"""Senders to the schedulers: opened when needed, closed when their scheduler is gone."""

from pathlib import Path

import pytest

from messages import engines
from messages.channels import Receiver, Sender
from messages.control.processes import kind_of, worker_number
from messages.engine_names import engine_name, rank_name, rank_of
from messages.engines import SchedulerSenders
from messages.ring.requests import AbortMsg, ToScheduler


def test_each_gets_its_own_and_one_that_has_left_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "TIDY_INTERVAL_S", 0.0)
    opened: list[str] = []
    closed: list[str] = []

    def path_of(name: str) -> Path:
        return tmp_path / f"{name}.sock"

    def open_sender(name: str) -> Sender[ToScheduler]:
        opened.append(name)
        return Sender(path_of(name))

    def close_sender(sender: Sender[ToScheduler]) -> None:
        closed.append(sender.path.stem)
        sender.close()

    receivers: list[Receiver[ToScheduler]] = [Receiver(path_of(engine_name(engine)), ToScheduler) for engine in (1, 2)]
    senders = SchedulerSenders(open_sender, close_sender)
    assert opened == ["scheduler"]
    for engine in (1, 2, 2):
        senders.send(engine, AbortMsg(engine, 0))
    assert opened == ["scheduler", "scheduler-2"]
    for engine, receiver in enumerate(receivers, 1):
        assert receiver.socket.poll(10_000)
        assert {message.uid for message in receiver.receive() if isinstance(message, AbortMsg)} == {engine}
    senders.tidy()
    assert closed == []
    for receiver in receivers:
        receiver.close()
    path_of("scheduler-2").unlink(missing_ok=True)
    senders.tidy()
    assert closed == ["scheduler-2"], "the first has a way as long as there is a server"
    senders.send(2, AbortMsg(5, 0))
    assert opened == ["scheduler", "scheduler-2", "scheduler-2"]
    senders.close()


@pytest.mark.parametrize(("rank", "engine", "name"), [(1, 1, "rank1"), (3, 1, "rank3"), (2, 12, "rank2-12")])
def test_the_name_of_a_rank_reports_rank_and_engine(rank: int, engine: int, name: str):
    assert rank_name(rank, engine) == name
    assert (rank_of(f"{name}.next"), worker_number(name), kind_of(name)) == (rank, engine, "rank")
    assert rank_of(engine_name(engine)) == 0
