"""A process that stands by for the scheduler, in runs of scripted processes: it takes over, and is never in the way."""

import os
import signal
from typing import Any

import psutil

from tests.supervisor.cli.test_operate import NAMES, SERVING, operate_on, ps
from tests.supervisor.fake_run import GOOD, FakeRun, is_running, wait_until
from tests.supervisor.test_replacement import states_of, stop

SPARE = "scheduler.next"
TAKES_OVER = "the process that stood by takes over"


def start(*others: str, **settings: Any) -> FakeRun:
    return FakeRun(dict.fromkeys((*NAMES, *others), GOOD), standby=True, **settings)


def wait_for_spare(run: FakeRun, incarnation: int = 2) -> int:
    """Returns the pid of the process that stands by, and will be this incarnation of the scheduler."""
    run.wait_for(f"{SPARE}=standby.{incarnation}")
    return run.record_pids()[SPARE]


def kill(run: FakeRun, name: str) -> None:
    os.kill(run.record_pids()[name], signal.SIGKILL)


def test_it_takes_the_place_of_a_scheduler_that_dies_and_the_next_one_is_started():
    with start() as run:
        run.wait_for(SERVING)
        spare = wait_for_spare(run)
        kill(run, "scheduler")
        run.wait_for("scheduler=ready.2")
        assert run.output.count(TAKES_OVER) == 1
        assert run.record_pids()["scheduler"] == spare
        status = ps(run)["scheduler"]
        assert (status["pid"], status["incarnation"], status["num_restarts"]) == (spare, 2, 1)
        assert states_of(run, "scheduler")[-3:] == ["restarting", "starting.2", "ready.2"]
        assert wait_for_spare(run, 3) != spare
        stop(run)


def test_nothing_is_left_of_it_after_the_launcher_was_killed():
    with start() as run:
        run.wait_for(SERVING)
        wait_for_spare(run)
        run.launcher.kill()
        run.launcher.wait()
        run.assert_nothing_left(timeout_s=60.0)


def test_one_that_dies_or_hangs_is_not_counted_on():
    with start() as run:
        run.wait_for(SERVING)
        spare = wait_for_spare(run)
        os.kill(spare, signal.SIGSTOP)
        wait_until(lambda: ps(run)[SPARE]["beat_age_s"] > 6.0)
        kill(run, "scheduler")
        run.wait_for("scheduler=ready.2")
        assert TAKES_OVER not in run.output
        os.kill(spare, signal.SIGCONT)
        wait_until(lambda: ps(run)[SPARE]["beat_age_s"] < 2.0)
        kill(run, "scheduler")
        run.wait_for("scheduler=ready.3")  # a number that no other has had
        assert run.record_pids()["scheduler"] == spare
        wait_for_spare(run, 4)
        kill(run, SPARE)
        wait_until(lambda: SPARE not in ps(run))
        kill(run, "scheduler")
        run.wait_for("scheduler=ready.4")
        assert run.output.count(TAKES_OVER) == 1
        stop(run)


def test_an_ordered_restart_starts_a_new_one_and_not_what_stood_by():
    with start() as run:
        run.wait_for(SERVING)
        spare, old = wait_for_spare(run), run.record_pids()["scheduler"]
        result = operate_on(run, "restart", "scheduler")
        assert result.returncode == 0, result.stderr
        assert not is_running(spare)
        assert run.record_pids()["scheduler"] not in (spare, old)
        run.wait_for("scheduler=ready.2")
        stop(run)


def test_more_schedulers_need_none():
    with start() as run:
        run.wait_for(SERVING)
        wait_for_spare(run)
        result = operate_on(run, "scale", "scheduler", "2")
        assert result.returncode == 0, result.stderr
        kill(run, SPARE)
        wait_until(lambda: SPARE not in ps(run))
        result = operate_on(run, "scale", "scheduler", "1")
        assert result.returncode == 0, result.stderr
        stop(run)


def test_a_scheduler_of_several_ranks_has_a_process_for_each_that_is_not_part_of_the_run():
    with start("rank1", tensor_parallel=2) as run:
        run.wait_for(SERVING)

        def find_spares() -> list[psutil.Process]:
            return [one for one in psutil.Process(run.launcher.pid).children() if "--spare" in one.cmdline()]

        wait_until(lambda: len(find_spares()) == 2)
        spares = find_spares()
        assert SPARE not in ps(run)
        kill(run, "frontend")
        run.wait_for("frontend=ready.2")
        assert find_spares() == spares, "other processes do not use them"
        stop(run)
        assert not any(is_running(spare.pid) for spare in spares)
