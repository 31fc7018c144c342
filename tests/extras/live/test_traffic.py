"""Rates of edges and costs of processes, from what changes between two tables."""

import os

import pytest

from extras.live import traffic
from extras.live.traffic import EdgeRates, ProcessCosts
from frontend.metrics.process_collector import ProcessCost
from messages.control.processes import ProcessState, ProcessStatus

SECOND = 1_000_000_000


def status(name: str, beat_s: float, num: int, *, sender_id: int = 1, state: ProcessState = "ready") -> ProcessStatus:
    return ProcessStatus(name, state, pid=1, beat_ns=int(beat_s * SECOND), sent={"scheduler": (sender_id, num)})


def test_a_rate_is_of_the_frames_between_two_beats():
    rates = EdgeRates()
    assert rates.update([status("tokenizer", 10, 100)]) == {"tokenizer:scheduler": 0.0}
    assert rates.update([status("tokenizer", 12, 150)]) == {"tokenizer:scheduler": 25.0}
    assert rates.update([status("tokenizer", 12, 150)]) == {"tokenizer:scheduler": 25.0}, "the beat is the same"
    assert rates.update([status("tokenizer", 13, 150)]) == {"tokenizer:scheduler": 0.0}


def test_beats_of_every_step_are_put_together():
    rates = EdgeRates()
    rates.update([status("tokenizer", 10, 0)])
    for beat in range(1, 5):
        assert rates.update([status("tokenizer", 10 + beat / 10, beat)]) == {"tokenizer:scheduler": 0.0}
    assert rates.update([status("tokenizer", 10.5, 5)]) == {"tokenizer:scheduler": 10.0}


def test_workers_are_added_up_and_a_new_process_counts_from_its_own_begin():
    rates = EdgeRates()
    rates.update([status("tokenizer", 10, 0), status("tokenizer-2", 10, 0)])
    both = [status("tokenizer", 11, 4), status("tokenizer-2", 11, 6)]
    assert rates.update(both) == {"tokenizer:scheduler": 10.0}
    replaced = [status("tokenizer", 12, 2, sender_id=9), status("tokenizer-2", 12, 12)]
    assert rates.update(replaced) == {"tokenizer:scheduler": 6.0}


def test_one_that_is_gone_sends_nothing():
    rates = EdgeRates()
    rates.update([status("tokenizer", 10, 0)])
    rates.update([status("tokenizer", 11, 9)])
    assert rates.update([status("tokenizer", 11, 9, state="dead")]) == {"tokenizer:scheduler": 0.0}


def test_costs_are_measured_once_a_second(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(traffic.time, "monotonic", lambda: clock[0])

    def find_cost(pid: int) -> ProcessCost | None:
        return ProcessCost((clock[0] - 100) / 4, 5000, 1, 9, 0.0) if pid == os.getpid() else None

    monkeypatch.setattr(traffic, "find_cost", find_cost)
    costs = ProcessCosts()
    statuses = [ProcessStatus("scheduler", "ready", pid=os.getpid()), ProcessStatus("gone", "dead", pid=2**22 + 1)]
    first = costs.update(statuses)
    assert first == {os.getpid(): traffic.Cost(None, 5000)}
    clock[0] += 0.5
    assert costs.update(statuses) is first
    clock[0] += 1.5
    assert costs.update(statuses) == {os.getpid(): traffic.Cost(25.0, 5000)}
