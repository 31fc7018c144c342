"""Processes of a run of scripted ones that are replaced on command."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from messages.control.processes import ProcessStatus
from messages.engine_names import SCHEDULER
from supervisor.admin import handover
from supervisor.admin.tasks import CommandFailedError
from supervisor.child import Child, Command
from tests.forked import ForkedProcess
from tests.supervisor.cli.test_operate import NAMES, SERVING, operate_on, ps, start
from tests.supervisor.fake_run import TIMEOUT_S, FakeRun, is_running, wait_until
from tests.supervisor.test_replacement import states_of, stop


def begin_restart(run: FakeRun, name: str, log: Path) -> ForkedProcess:
    with log.open("wb") as output:
        return ForkedProcess("launch", ["restart", name, "--run-dir", str(run.run_dir.path)], output.fileno())


def record_changes(run: FakeRun, name: str, pids: dict[str, int]) -> None:
    """Asserts that of all processes `name` alone is another one than in `pids`, and that there is one of each."""
    new_pids = run.record_pids()
    assert {**new_pids, name: 0} == {**pids, name: 0}
    assert new_pids[name] != pids[name]
    assert not is_running(pids[name])
    assert {process for process in ps(run) if process != "launcher"} == set(NAMES)


@pytest.mark.parametrize("name", ["tokenizer", "scheduler", "detokenizer"])
def test_a_successor_stands_by_before_the_old_one_stops(name: str):
    with start() as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        result = operate_on(run, "restart", name)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(f"{name}: replaced in ")
        run.wait_for(f"{name}=ready.2")
        record_changes(run, name, pids)
        assert run.output.index(f"{name}.next stands by after ") < run.output.index(f"{name:<12} stopping")
        assert ("scheduler    drain 0" in run.output) == (name == "scheduler")
        assert "died" not in run.output
        assert states_of(run, name)[-1] == "ready.2"
        status = ps(run)[name]
        assert (status["incarnation"], status["num_restarts"]) == (2, 1)
        os.kill(run.record_pids()[name], signal.SIGKILL)
        run.wait_for(f"{name}=ready.3")
        stop(run)


def test_an_old_frontend_leaves_when_its_successor_accepts_connections():
    with start() as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        result = operate_on(run, "restart", "frontend", "--timeout-s", "9")
        assert result.returncode == 0, result.stderr
        run.wait_for("frontend.old has left")
        assert run.output.index("frontend     ready in", run.output.index(SERVING)) < run.output.index("leave 9")
        record_changes(run, "frontend", pids)
        run.wait_for("table frontend=ready.2 tokenizer=ready")
        stop(run)


def test_every_process_again_and_again():
    with start() as run:
        run.wait_for(SERVING)
        for incarnation in (2, 3):
            for name in NAMES:
                assert operate_on(run, "restart", name).returncode == 0
                assert ps(run)[name]["incarnation"] == incarnation
        assert set(run.run_dir.pids()) == set(NAMES)
        assert not list(run.run_dir.path.glob("*.next*")) + list(run.run_dir.path.glob("*.old*"))
        stop(run)


@pytest.mark.parametrize("behaviour", ["fail_to_boot_again", "die_in_standby"])
def test_where_the_new_one_cannot_start_the_old_one_serves_on(behaviour: str):
    with start(tokenizer=behaviour) as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        result = operate_on(run, "restart", "tokenizer")
        assert result.returncode == 1
        assert "the old one serves on" in result.stderr
        assert run.record_pids() == pids
        assert ps(run)["tokenizer"]["state"] == "ready"
        stop(run)


def test_a_new_one_that_dies_as_it_takes_over_is_started_again():
    with start(tokenizer="die_at_take_over") as run:
        run.wait_for(SERVING)
        result = operate_on(run, "restart", "tokenizer")
        assert result.returncode == 1
        assert "the new tokenizer ended as it took over" in result.stderr
        run.wait_for("tokenizer=ready.3")
        assert set(run.record_pids()) == set(NAMES)
        stop(run)


def test_an_old_one_that_does_not_stop_is_killed():
    with start(detokenizer="never_leave") as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        assert operate_on(run, "restart", "detokenizer").returncode == 0
        record_changes(run, "detokenizer", pids)
        stop(run)


def test_an_old_one_that_dies_meanwhile_is_not_replaced_twice(tmp_path: Path):
    with start(scheduler="boot_for_ever_again") as run:
        run.wait_for(SERVING)
        command = begin_restart(run, "scheduler", tmp_path / "log")
        run.wait_for("scheduler.next=starting.2")
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("; its successor takes over")
        os.kill(run.record_pids()["scheduler.next"], signal.SIGKILL)
        assert command.wait(TIMEOUT_S) == 1
        assert "the old one has ended too, and is started again" in (tmp_path / "log").read_text()
        wait_until(lambda: ps(run)["scheduler"]["state"] != "restarting")
        assert set(run.record_pids()) == set(NAMES)
        stop(run)


def test_a_second_order_is_refused_while_the_first_is_carried_out(tmp_path: Path):
    with start(scheduler="boot_for_ever_again") as run:
        run.wait_for(SERVING)
        command = begin_restart(run, "scheduler", tmp_path / "log")
        run.wait_for("scheduler.next=starting.2")
        second = operate_on(run, "restart", "scheduler")
        assert (second.returncode, second.stderr) == (
            1,
            "launch.py restart: the scheduler is being replaced already\n",
        )
        assert operate_on(run, "restart", "scheduler.next").returncode == 2
        assert operate_on(run, "restart", "tokenizer").returncode == 0
        stop(run)
        assert command.wait(TIMEOUT_S) == 1


def test_nothing_is_left_after_the_launcher_was_killed_during_a_handover(tmp_path: Path):
    with start(scheduler="boot_for_ever_again") as run:
        run.wait_for(SERVING)
        command = begin_restart(run, "scheduler", tmp_path / "log")
        run.wait_for("scheduler.next=starting.2")
        run.record_pids()
        began_s = time.monotonic()
        run.launcher.kill()
        run.launcher.wait()
        run.assert_nothing_left(timeout_s=30.0)
        assert time.monotonic() - began_s < TIMEOUT_S
        assert command.wait(TIMEOUT_S) == 3


def test_wrong_names_are_notified():
    with start() as run:
        run.wait_for(SERVING)
        assert operate_on(run, "restart", "nobody").returncode == 2
        stop(run)


class UnjoinedGroup:
    """An engine whose machine does not come back after a restart on command, or one of its stages' machines."""

    def __init__(self, ranks: list[Child]) -> None:
        self.is_awaited = True
        self._ranks = ranks

    def ranks_of(self, child: Child) -> list[Child]:
        return self._ranks

    def __contains__(self, name: str) -> bool:
        return True

    def give_place(self, successor: Child, child: Child) -> None:
        successor.name = child.name

    def is_up(self, child: Child) -> bool:
        return False

    def status(self, child: Child) -> ProcessStatus:
        phase = "waiting at tcp://10.0.0.1:7001" if child.command.is_remote else "synchronizing with the other stages"
        return ProcessStatus(child.name, "starting", phase=phase, is_awaited=self.is_awaited)

    def expect_no_longer(self, child: Child) -> None:
        self.is_awaited = False


@pytest.mark.parametrize("missing", [SCHEDULER, "rank1"])
def test_no_request_waits_for_an_engine_that_has_not_joined_in_time(monkeypatch: pytest.MonkeyPatch, missing: str):
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    group: Any = UnjoinedGroup([Child(Command("rank1", (), is_remote=missing == "rank1"))])
    old, new = (Child(Command(SCHEDULER, (), is_remote=missing == SCHEDULER)) for _ in range(2))
    new.pid = 7
    steps = handover._take_place(group, new, old)  # pyright: ignore[reportPrivateUsage]
    next(steps)
    assert group.is_awaited
    now_s = handover.JOIN_TIMEOUT_S + 1
    with pytest.raises(CommandFailedError, match=f"no engine has joined in place of the old {missing}: it is waiting"):
        next(steps)
    assert not group.is_awaited
