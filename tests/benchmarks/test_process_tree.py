"""CPU, wake-ups and memory of a tree of processes, against processes whose habits are known."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.server_process import is_running, memory, tree_pids, unique_names, watch

SAYS_READY = "import sys, time; print('ready', flush=True); "
BUSY = SAYS_READY + "\nwhile True: pass"
IDLE = SAYS_READY + "sys.stdin.read()"
WAKES = SAYS_READY + "\nwhile True: time.sleep(0.02)"
WAKES_IN_A_THREAD = (
    "import threading, time, sys\n"
    "def loop():\n    while True: time.sleep(0.02)\n"
    "threading.Thread(target=loop, daemon=True).start(); print('ready', flush=True); sys.stdin.read()"
)
BIG = "held = bytearray(64 << 20); held[::4096] = b'1' * (len(held) // 4096); " + IDLE
PARENT = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE); "
    "sys.stdin.read()"
)


@contextmanager
def running(code: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def test_a_busy_process_and_an_idle_one() -> None:
    with running(BUSY) as busy, running(IDLE) as idle:
        at_work, at_rest = watch(busy, 0.5), watch(idle, 0.5)
    assert at_work.percent_of_a_core > 1  # of a machine with many other programs
    assert at_rest.percent_of_a_core < 20
    assert at_rest.wakeups_per_s < 20
    assert at_work.seconds >= 0.5


def test_wakeups_of_all_threads_count() -> None:
    for code in (WAKES, WAKES_IN_A_THREAD):
        with running(code) as pid:
            assert 2 < watch(pid, 2.0).wakeups_per_s < 60


def test_children_are_part_of_the_tree() -> None:
    with running(PARENT.format(child=WAKES)) as pid:
        assert len(tree_pids(pid)) == 2
        activity = watch(pid, 2.0)
        assert activity.wakeups_per_s > 2
        assert len(activity.wakeups_per_s_by_process) == 2
        assert [process.pid for process in memory(pid)] == tree_pids(pid)
        for child in tree_pids(pid)[1:]:
            os.kill(child, 9)


def test_memory_that_is_held_is_seen() -> None:
    with running(IDLE) as small, running(BIG) as big:
        [few], [many] = memory(small), memory(big)
    assert 60 < many.rss_mib - few.rss_mib < 70
    assert 60 < many.pss_mib - few.pss_mib < 70
    assert few.pss_mib <= few.rss_mib
    assert (few.command, few.num_threads) == ("python -c", 1)


def test_processes_that_have_ended_do_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(process.pid), "a zombie"
    process.wait()
    assert not is_running(process.pid)
    assert is_running(os.getpid())


def test_names_are_unique() -> None:
    assert unique_names({1: "launch.py", 2: "worker", 3: "worker"}) == {
        1: "launch.py",
        2: "worker (2)",
        3: "worker (3)",
    }
