"""Several frontends of a run of scripted processes: each receives the table, drains, and is replaced by itself."""

import os
import signal

import pytest

from messages.errors import UsageError
from supervisor.flags import parse_flags
from supervisor.run import build_config, check_flags, server_commands
from tests.supervisor.cli.test_operate import operate_on, ps
from tests.supervisor.fake_run import GOOD, FakeRun
from tests.supervisor.test_replacement import stop

TWO = {"frontend": GOOD, "frontend-2": GOOD, "tokenizer": GOOD, "scheduler": GOOD, "detokenizer": GOOD}
OTHERS = "tokenizer=ready scheduler=ready detokenizer=ready"
SERVING = "try      curl"


def start(frontend: str = GOOD, drain_timeout_s: float = 30.0) -> FakeRun:
    return FakeRun({**TWO, "frontend": frontend}, drain_timeout_s=drain_timeout_s)


def test_the_commands_name_each_worker():
    flags = ["--tokenizer-workers", "2", "--frontend-workers", "3", "--data-parallel", "2"]
    commands = {command.name: command for command in server_commands(check_flags(parse_flags(flags)))}
    fronts = ["frontend", "frontend-2", "frontend-3"]
    assert list(commands) == [*fronts, "tokenizer", "tokenizer-2", "scheduler", "scheduler-2", "detokenizer"]
    assert commands["frontend-3"].arguments[-4:] == ("-m", "frontend", "--name", "frontend-3")


def test_a_frontend_started_by_hand_is_alone():
    with pytest.raises(UsageError, match="--frontend-workers: a frontend that is started by hand binds the port"):
        build_config(parse_flags(["--frontend-workers", "2", "--external", "frontend"]))


@pytest.mark.parametrize(("victim", "other"), [("frontend", "frontend-2"), ("frontend-2", "frontend")])
def test_the_other_one_learns_of_a_death_and_of_the_replacement(victim: str, other: str):
    with start() as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        os.kill(pids[victim], signal.SIGKILL)
        for state in ("restarting", "ready.2"):
            states = {victim: state, other: "ready"}
            shown = " ".join(f"{name}={states[name]}" for name in ("frontend", "frontend-2"))
            run.wait_for(f"{other:<12} table {shown} {OTHERS}")
        run.wait_for(f"{victim:<12} table ")
        assert {**run.record_pids(), victim: 0} == {**pids, victim: 0}
        stop(run)


def test_each_is_replaced_by_command():
    with start() as run:
        run.wait_for(SERVING)
        pids = run.record_pids()
        for name in ("frontend-2", "frontend"):
            result = operate_on(run, "restart", name, "--timeout-s", "9")
            assert result.returncode == 0, result.stderr
            assert f"{name}: the old one has left" in result.stdout
            run.wait_for(f"{name}.old has left")
            assert ps(run)[name]["incarnation"] == 2
        new_pids = run.record_pids()
        assert set(new_pids) == set(TWO)
        assert {name for name in TWO if new_pids[name] != pids[name]} == {"frontend", "frontend-2"}
        stop(run)


def test_all_drain_and_the_door_closes_first():
    with start() as run:
        run.wait_for(SERVING)
        stop(run)
        for name in ("frontend", "frontend-2"):
            assert f"{name:<12} drain 30" in run.output
            assert run.output.index(f"{name:<12} stopping") < run.output.index("scheduler    stopping")


def test_a_drain_continues_without_one_that_dies_and_its_replacement_takes_nothing():
    with start(frontend="never_finish_draining", drain_timeout_s=6.0) as run:
        run.wait_for(SERVING)
        run.launcher.send_signal(signal.SIGTERM)
        run.wait_for("frontend-2   drain 6")
        run.wait_for("frontend     drain 6")
        os.kill(run.record_pids()["frontend-2"], signal.SIGKILL)
        run.wait_for("frontend-2   drain 0")
        assert run.wait_exit() == 0, run.output
        run.assert_nothing_left()
