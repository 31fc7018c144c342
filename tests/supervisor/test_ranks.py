"""Engines of several ranks in a run of scripted processes: the ranks of one start, end and are replaced together."""

import os
import signal

import pytest

from tests.supervisor.cli.test_operate import SERVING, operate_on, ps
from tests.supervisor.fake_run import HANG_TIMEOUT_S, is_running
from tests.supervisor.test_replacement import start, stop

ENGINE = ("scheduler", "rank1", "rank2")
REST = "(kill -9, or the kernel's out-of-memory killer)"


@pytest.mark.parametrize("victim", ["rank1", "scheduler"])
def test_all_ranks_end_with_one_of_them_and_that_is_one_restart(victim: str):
    with start("rank1", "rank2") as run:
        run.wait_for(SERVING)
        before = run.record_pids()
        os.kill(before[victim], signal.SIGKILL)
        for name in ENGINE:
            run.wait_for(f"{name}=ready.2")
        after = run.record_pids()
        assert after["frontend"] == before["frontend"]
        for name in ENGINE:
            assert after[name] != before[name]
            assert not is_running(before[name])
        assert f"rank2        died: it was ended with {victim}, which was killed by SIGKILL {REST} after" in run.output
        assert "restarting in 0 s (1 of 10 a minute)" in run.output
        assert "(2 of 10 a minute)" not in run.output
        stop(run)
        assert run.output.index("scheduler    stopping") < run.output.index("rank1        stopping")


def test_a_rank_that_hangs_is_killed_and_its_engine_replaced():
    with start("rank1", settings={"hang_timeout_s": HANG_TIMEOUT_S}) as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["rank1"], signal.SIGSTOP)
        run.wait_for("rank1        hangs: no heartbeat for")
        run.wait_for("scheduler    died: it was ended with rank1, which hung and was killed after")
        run.wait_for("rank1=ready.2")
        stop(run)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("fail_to_boot", "rank1 cannot start: there are no weights in /nowhere"),
        ("crash_at_boot", "rank1 cannot start: it exited with code 1"),
    ],
)
def test_a_rank_that_cannot_start_ends_the_launch_with_its_reason(behaviour: str, text: str):
    with start(rank1=behaviour, scheduler="stay_in_phase") as run:
        assert run.wait_exit() == 1
        assert text in run.output
        assert "scheduler cannot start" not in run.output
        run.assert_nothing_left()


def test_a_machine_that_leaves_during_the_first_start_does_not_end_the_run():
    with start(rank1="lose_a_machine") as run:
        run.wait_for(SERVING)
        assert "restarting in 0 s (1 of 10 a minute)" in run.output
        assert run.record_pids().keys() >= {"scheduler", "rank1"}
        stop(run)


def test_a_rank_that_cannot_start_again_is_a_death_of_its_engine():
    with start(rank1="fail_to_boot_again") as run:
        run.wait_for(SERVING)
        os.kill(run.record_pids()["scheduler"], signal.SIGKILL)
        run.wait_for("rank1        cannot start: there are no weights in /nowhere")
        run.wait_for("restarting in 0.5 s (2 of 10 a minute)")
        run.wait_for("scheduler=ready.3")
        run.wait_for("rank1=ready.3")
        stop(run)


def test_a_scheduler_that_is_replaced_gets_new_ranks():
    with start("rank1") as run:
        run.wait_for(SERVING)
        before = run.record_pids()
        result = operate_on(run, "restart", "rank1")
        assert result.returncode == 2
        assert "the rank1 is replaced with its scheduler: restart scheduler" in result.stderr
        assert operate_on(run, "restart", "scheduler").returncode == 0
        run.wait_for("rank1=ready.2")
        assert not is_running(before["rank1"])
        assert {name: ps(run)[name]["num_restarts"] for name in ("scheduler", "rank1")} == {"scheduler": 1, "rank1": 1}
        stop(run)


def test_an_engine_is_added_and_removed_with_its_ranks():
    with start("rank1") as run:
        run.wait_for(SERVING)
        result = operate_on(run, "scale", "scheduler", "2")
        assert result.returncode == 0, result.stderr
        before = run.record_pids()
        os.kill(before["rank1-2"], signal.SIGKILL)
        run.wait_for("rank1-2=ready.2")
        run.wait_for("scheduler-2=ready.2")
        after = run.record_pids()
        assert {name: after[name] for name in ("scheduler", "rank1")} == {
            name: before[name] for name in ("scheduler", "rank1")
        }
        assert operate_on(run, "scale", "scheduler", "1").returncode == 0
        assert set(ps(run)) == {"launcher", "frontend", "scheduler", "rank1"}
        stop(run)


def test_an_engine_of_which_a_rank_cannot_start_is_provided_up_and_the_run_continues():
    with start(rank1="serve_only_the_first") as run:
        run.wait_for(SERVING)
        result = operate_on(run, "scale", "scheduler", "2")
        assert result.returncode == 1
        assert "one is enough" in result.stderr + run.output
        assert set(ps(run)) == {"launcher", "frontend", "scheduler", "rank1"}
        stop(run)
