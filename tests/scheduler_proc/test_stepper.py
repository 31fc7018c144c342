"""The order of launches and results, with and without overlap, and what a failure of either costs."""

import logging
import random
from collections.abc import Sequence

import pytest

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.drafting.step_cost import StepCost
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.overlapped import HOST_S, OverlappedBench, OverlappedRunner
from tests.scheduler_proc.simulated_runner import expected_output

PROMPTS = {1: [3, 1, 4], 2: [1, 5, 9, 2, 6], 3: [5, 3, 5, 8, 9, 7]}


def send_all(bench: Bench, max_tokens: int = 10) -> None:
    bench.send(*(user_msg(uid, prompt, max_tokens, ignore_eos=True) for uid, prompt in PROMPTS.items()))


def check_all(bench: Bench, uids: Sequence[int] = tuple(PROMPTS), max_tokens: int = 10) -> None:
    for uid in uids:
        params = user_msg(uid, [], max_tokens, ignore_eos=True).sampling_params
        assert bench.output(uid) == expected_output(PROMPTS[uid], params, VOCAB_SIZE, 64)


class NotingRunner(OverlappedRunner):
    """Notes what is asked of it."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.runner)
        self.notes: list[str] = []

    def launch(self, batch: Batch):
        self.notes.append(f"launch {batch.step_id}")
        return super().launch(batch)

    def result_of(self, launched) -> ForwardOutput:
        self.notes.append(f"result {launched.batch.step_id}")
        return super().result_of(launched)


def drive(bench: Bench, runner: OverlappedRunner, can_overlap: bool) -> StepTimes:
    times = StepTimes()
    runner.can_overlap = can_overlap
    stepper = Stepper(bench.scheduler, runner, times)
    while (batch := bench.scheduler.schedule()) is not None or stepper.has_step:
        runner.now_s += HOST_S
        stepper.step(batch, 0.0)
        bench.inbox.take(bench.scheduler.pop_replies())
    return times


def test_the_next_step_is_launched_before_the_last_ones_result_is_requested():
    bench = Bench()
    runner = NotingRunner(bench)
    send_all(bench, 3)
    times = drive(bench, runner, can_overlap=True)
    assert runner.notes == ["launch 1", "launch 2", "result 1", "launch 3", "result 2", "result 3"]
    assert times.counts()["step_rows"].total == 9
    check_all(bench, max_tokens=3)


def test_without_overlap_each_step_ends_before_the_next_is_planned():
    bench = Bench()
    runner = NotingRunner(bench)
    send_all(bench, 3)
    times = drive(bench, runner, can_overlap=False)
    assert runner.notes == ["launch 1", "result 1", "launch 2", "result 2", "launch 3", "result 3"]
    assert times.counts()["step_rows"].total == 9
    assert not runner.num_ahead
    check_all(bench, max_tokens=3)


def test_the_host_works_while_the_device_does():
    took_s: list[float] = []
    for can_overlap in (False, True):
        bench = Bench()
        runner = OverlappedRunner(bench.runner)
        send_all(bench, 50)
        drive(bench, runner, can_overlap)
        check_all(bench, max_tokens=50)
        took_s.append(runner.now_s)
    alone_s, overlapped_s = took_s
    assert overlapped_s < 1.05 * (alone_s - 50 * HOST_S), "of the host's time only that of the first turn is waited for"


@pytest.mark.parametrize("where", ["launch", "result"])
def test_a_step_that_fails_once_is_run_again_alone(where, caplog):
    caplog.set_level(logging.ERROR, "sluice.scheduler")
    bench = OverlappedBench()
    send_all(bench)
    asked: list[str] = []

    def fails(place: str) -> bool:
        asked.append(place)
        return asked.count(where) == 4 and place == where

    bench.device.fails = fails
    bench.run()
    check_all(bench)
    assert bench.device.num_ahead > 5, "overlap goes on afterwards"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_row_that_always_fails_fails_alone(caplog):
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench = OverlappedBench()
    send_all(bench)
    poison = next(token for token in bench_output(1)[4:] if token not in {*bench_output(2), *bench_output(3)})
    bench.runner.poison = {poison}
    bench.run()
    check_all(bench, (2, 3))
    assert bench.end(1).finish_reason == "error"
    assert bench.output(1) == bench_output(1)[: bench_output(1).index(poison) + 1]


def bench_output(uid: int) -> list[int]:
    params = user_msg(uid, [], 10, ignore_eos=True).sampling_params
    return expected_output(PROMPTS[uid], params, VOCAB_SIZE, 64)


def test_a_device_that_is_gone_ends_every_request(caplog):
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench = OverlappedBench()
    send_all(bench)
    for _ in range(4):
        bench.step()
    bench.runner.poison = set(range(VOCAB_SIZE))
    bench.run()
    assert {end.finish_reason for end in bench.inbox.finished.values()} == {"error"}
    assert len(bench.inbox.finished) == len(PROMPTS)


def test_a_step_that_no_one_waits_for_any_more_is_committed_too():
    bench = OverlappedBench()
    bench.send(user_msg(1, [1, 2, 3], 9, stop_token_ids=tuple(range(VOCAB_SIZE))))
    bench.step()
    bench.step()
    assert bench.end(1).finish_reason == "stop"
    assert bench.stepper.has_step, "one more had been launched"
    bench.step()
    assert not bench.stepper.has_step
    assert bench.device.num_ghosts == 1
    bench.check_idle()
    assert len(bench.output(1)) == 1


@pytest.mark.parametrize("can_overlap", [False, True])
def test_what_other_programs_take_of_the_time_makes_no_token_dear(can_overlap: bool, monkeypatch: pytest.MonkeyPatch):
    """All else is noise by the wall clock; by the thread's own time a token more costs a twentieth of a step."""
    bench, cost, chance = Bench(), StepCost(), random.Random(5)
    runner = OverlappedRunner(bench.runner)
    wall_s = cpu_s = 0.0
    runner.can_overlap = can_overlap
    stepper = Stepper(bench.scheduler, runner, StepTimes(), lambda: wall_s, lambda: cpu_s)
    monkeypatch.setattr(bench.scheduler, "record_time", lambda batch, _, cost_s: cost.add(batch.num_tokens, cost_s))
    for index in range(200):
        bench.send(user_msg(index, PROMPTS[1] * chance.randrange(1, 4), 1))
        while (batch := bench.scheduler.schedule()) is not None or stepper.has_step:
            start_s, took_s = wall_s, 0.95 + 0.05 * (batch.num_tokens if batch else 0)
            cpu_s += took_s
            wall_s += took_s * (1 + (9 * chance.random() if took_s > 1.2 else 0))
            stepper.step(batch, start_s)
            bench.inbox.take(bench.scheduler.pop_replies())
    is_right = cost.seconds_per_token / cost.predict(1) == pytest.approx(0.05, rel=0.2)
    assert is_right is not can_overlap, "where the device computes, only the wall clock knows"
