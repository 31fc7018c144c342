"""More and fewer tokenizers in a run of scripted processes."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from messages.control.admin import Progress, ScaleProcess
from messages.control.processes import ProcessStatus
from messages.engine_names import SCHEDULER
from supervisor.admin.handover import JOIN_TIMEOUT_S
from supervisor.admin.scaling import scale_process
from supervisor.admin.tasks import CommandFailedError
from supervisor.child import Child, Command
from tests.supervisor.cli.test_operate import NAMES, SERVING, operate_on, ps, start
from tests.supervisor.fake_run import FakeRun
from tests.supervisor.test_replacement import stop

SCHEDULERS = ("scheduler", "scheduler-2", "scheduler-3")


def tokenizers(run: FakeRun) -> list[str]:
    return [name for name in ps(run) if name.startswith("tokenizer")]


def test_workers_are_added_and_leave_again():
    with start() as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        result = operate_on(run, "scale", "tokenizer", "3")
        assert (result.returncode, result.stdout) == (0, "tokenizer: 1 -> 3\n")
        run.wait_for("tokenizer=ready tokenizer-2=ready tokenizer-3=ready")
        assert tokenizers(run) == ["tokenizer", "tokenizer-2", "tokenizer-3"]
        assert {name: pid for name, pid in run.record_pids().items() if name in NAMES} == pids
        assert operate_on(run, "scale", "tokenizer", "1").returncode == 0
        assert tokenizers(run) == ["tokenizer"]
        run.wait_for("tokenizer-2  has left")
        run.wait_for("tokenizer-3  has left")
        assert run.run_dir.pids() == pids
        assert operate_on(run, "scale", "tokenizer", "1").returncode == 0
        stop(run)


def test_a_worker_that_dies_is_replaced_under_its_name():
    with start() as run:
        run.wait_for(SERVING)
        assert operate_on(run, "scale", "tokenizer", "2").returncode == 0
        os.kill(run.record_pids()["tokenizer-2"], signal.SIGKILL)
        run.wait_for("tokenizer-2=ready.2")
        assert operate_on(run, "restart", "tokenizer-2").returncode == 0
        assert ps(run)["tokenizer-2"]["incarnation"] == 3
        assert ps(run)["tokenizer"]["incarnation"] == 1
        stop(run)


def test_a_worker_that_cannot_start_is_provided_up_and_the_run_continues():
    with start(tokenizer="serve_only_the_first") as run:
        run.wait_for(SERVING)
        result = operate_on(run, "scale", "tokenizer", "2")
        assert result.returncode == 1
        assert "not all could be started: tokenizer-2: one is enough" in result.stderr
        assert tokenizers(run) == ["tokenizer"]
        assert run.record_pids().keys() == set(NAMES)
        stop(run)


def test_schedulers_are_added_replaced_and_removed():
    """One of several that is replaced gives its work away first, and is none the less there afterwards."""
    with start() as run:
        run.wait_for(SERVING)
        assert operate_on(run, "scale", "scheduler", "2").returncode == 0
        for name in ("scheduler-2", "scheduler-1"):
            result = operate_on(run, "restart", name)
            assert result.returncode == 0, result.stderr
            assert "running requests continue elsewhere" in result.stderr
        assert {name: ps(run)[name]["incarnation"] for name in ("scheduler", "scheduler-2")} == {
            "scheduler": 2,
            "scheduler-2": 2,
        }
        os.kill(run.record_pids()["scheduler-2"], signal.SIGKILL)
        run.wait_for("scheduler-2=ready.3")
        assert operate_on(run, "scale", "scheduler", "1").returncode == 0
        assert "scheduler-2" not in ps(run)
        stop(run)


def test_all_of_a_kind_are_replaced_one_after_the_other():
    with start() as run:
        run.wait_for(SERVING)
        assert operate_on(run, "scale", "scheduler", "3").returncode == 0
        before = ps(run)
        result = operate_on(run, "restart", "scheduler", "--all")
        assert (result.returncode, result.stdout) == (0, "scheduler: all 3 replaced\n"), result.stderr
        now = ps(run)
        assert {name for name in now if now[name]["pid"] != before[name]["pid"]} == set(SCHEDULERS)
        assert {now[name]["incarnation"] for name in SCHEDULERS} == {2}
        run.wait_for("scheduler-3=ready.2")
        for name, following in pairwise(SCHEDULERS):
            serves_again = run.output.index(f"{name}=ready.2")
            assert serves_again < run.output.index(f"{following}.next=starting.2"), "one was away while the next began"
        stop(run)


def test_the_failure_of_one_leaves_the_others_as_they_are():
    with start(scheduler="fail_to_boot_again") as run:
        run.wait_for(SERVING)
        assert operate_on(run, "scale", "scheduler", "2").returncode == 0
        pids = run.record_pids()
        result = operate_on(run, "restart", "scheduler", "--all")
        assert result.returncode == 1
        assert "there are no weights in /nowhere" in result.stderr
        assert result.stderr.endswith("the old one serves on; replaced: none; not replaced: scheduler-2\n")
        assert run.record_pids() == pids
        stop(run)


class WaitingGroup:
    """An engine that serves, and those that are added: they wait for a machine, or load."""

    has_started, is_draining = True, False

    def __init__(self, phase: str):
        self.phase = phase
        self.children = [Child(Command(SCHEDULER, ()))]
        self.group = self

    def __iter__(self) -> Iterator[Child]:
        return iter(self.children)

    def __contains__(self, name: str) -> bool:
        return name in [child.name for child in self]

    def find(self, name: str) -> Child | None:
        return next((child for child in self if child.name == name), None)

    def names(self) -> list[str]:
        return [child.name for child in self]

    def ranks_of(self, child: Child) -> tuple[Child, ...]:
        return ()

    def status(self, child: Child) -> ProcessStatus:
        return ProcessStatus(child.name, "starting", phase=self.phase)

    def add(self, command: Command) -> Child:
        child = Child(command)
        child.pid, child.is_on_trial = 7, True
        self.children.append(child)
        return child

    def ask_to_stop(self, child: Child) -> None:
        child.pid = 0


def test_an_engine_that_has_no_machine_for_a_minute_is_provided_up_and_one_that_loads_is_not(
    monkeypatch: pytest.MonkeyPatch,
):
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    waiting, loading = (WaitingGroup(phase) for phase in ("waiting for Ray", "loading weights"))
    groups: list[Any] = [waiting, loading]
    tasks = [scale_process(group, ScaleProcess(SCHEDULER, 2), 1.0) for group in groups]
    for task in tasks:
        assert next(task) == Progress("scheduler-2 start")
        assert next(task) == JOIN_TIMEOUT_S
    now_s = JOIN_TIMEOUT_S + 1
    assert next(tasks[1]) == now_s + JOIN_TIMEOUT_S
    with pytest.raises(CommandFailedError, match="scheduler-2: no engine has joined within 60 s: it was waiting"):
        next(tasks[0])
    assert [group.children[1].pid for group in groups] == [0, 7]


def test_a_server_of_several_models_has_no_engines_to_scale():
    group: Any = WaitingGroup("")
    group.children = [Child(Command("frontend", ()))]
    with pytest.raises(CommandFailedError, match="there is no process 'scheduler'; they are frontend"):
        next(scale_process(group, ScaleProcess(SCHEDULER, 2), 1.0))


@pytest.mark.parametrize(
    ("words", "exit_code", "text"),
    [
        (("detokenizer", "2"), 2, "only tokenizer, encoder, scheduler can be scaled, not the detokenizer"),
        (("tokenizer", "0"), 2, "there can be 1 to 64 of the tokenizer, not 0"),
        (("tokenizer", "65"), 2, "there can be 1 to 64 of the tokenizer, not 65"),
        (("scheduler", "33"), 2, "there can be 1 to 32 of the scheduler, not 33"),
        (("nobody", "2"), 2, "there is no process 'nobody'"),
    ],
)
def test_what_cannot_be_scaled(words: tuple[str, str], exit_code: int, text: str):
    with start() as run:
        run.wait_for(SERVING)
        result = operate_on(run, "scale", *words)
        assert result.returncode == exit_code
        assert text in result.stderr
        stop(run)
