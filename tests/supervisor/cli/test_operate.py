"""The operator's commands, as people type them, against runs of scripted processes."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from supervisor.cli.operate import operate as run_command
from tests.forked import run_forked
from tests.supervisor.fake_run import GOOD, ROOT, TIMEOUT_S, FakeRun, environment, is_running

NAMES = ("frontend", "tokenizer", "scheduler", "detokenizer")
SERVING = "stop     Ctrl-C"


def start(**behaviours: str) -> FakeRun:
    return FakeRun({**dict.fromkeys(NAMES, GOOD), **behaviours})


def operate(*words: str) -> subprocess.CompletedProcess[str]:
    return run_forked("launch", words)


def operate_on(run: FakeRun, *words: str) -> subprocess.CompletedProcess[str]:
    return operate(*words, "--run-dir", str(run.run_dir.path))


def ps(run: FakeRun) -> dict[str, dict[str, Any]]:
    """Returns the processes of `ps --json`, by name."""
    result = operate_on(run, "ps", "--json")
    assert result.returncode == 0, result.stderr
    return {process["name"]: process for process in json.loads(result.stdout)["processes"]}


def test_ps_lists_every_process_as_it_is():
    with start() as run:
        run.wait_for(SERVING)
        processes = ps(run)
        assert {name: process["pid"] for name, process in processes.items()} == {
            "launcher": run.launcher.pid,
            **run.record_pids(),
        }
        assert {process["state"] for process in processes.values()} == {"ready"}
        for process in processes.values():
            assert process["rss_bytes"] > 2**20
            assert process["cpu_percent"] >= 0.0
            assert process["beat_age_s"] < TIMEOUT_S
        lines = operate_on(run, "ps").stdout.splitlines()
        assert lines[0].startswith("fake on port ")
        assert lines[1].split() == ["PROCESS", "PID", "STATE", "BEAT", "INC", "RESTARTS", "CPU%", "RSS", "QUEUE"]
        assert [line.split()[0] for line in lines[2:-1]] == ["launcher", *NAMES]
        assert re.fullmatch(r"memory: \d+M", lines[-1]), "these processes have no model"


def test_ps_answers_while_a_process_starts():
    with start(scheduler="stay_in_phase") as run:
        run.wait_for("scheduler    loading weights")
        scheduler = ps(run)["scheduler"]
        assert (scheduler["state"], scheduler["phase"]) == ("starting", "loading weights")
        assert "starting (loading weights)" in operate_on(run, "ps").stdout


def test_logs_are_the_last_lines_of_a_process_over_its_incarnations():
    with start(scheduler="write_lines") as run:
        run.wait_for(SERVING)
        run.wait_for("line 1.1199")
        everything = operate_on(run, "logs", "scheduler", "-n", "5000").stdout.splitlines()
        assert everything == [f"line 1.{number}" for number in range(200, 1200)]
        assert operate_on(run, "logs", "scheduler", "-n", "2").stdout == "line 1.1198\nline 1.1199\n"
        assert operate_on(run, "logs", "scheduler", "-n", "0").stdout == ""
        as_json = operate_on(run, "logs", "scheduler", "-n", "1", "--json").stdout
        assert json.loads(as_json) == {"process": "scheduler", "line": "line 1.1199"}
        operate_on(run, "log-level", "error", "scheduler")
        run.wait_for("line 2.99")
        assert operate_on(run, "logs", "scheduler", "-n", "101").stdout.startswith("line 1.1199\nline 2.0\n")


def test_logs_can_be_followed():
    with start(scheduler="write_lines") as run:
        run.wait_for("line 1.1199")
        words = [sys.executable, str(ROOT / "launch.py"), "logs", "scheduler", "--follow", "-n", "1"]
        words += ["--run-dir", str(run.run_dir.path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as follower:
            assert follower.stdout is not None
            try:
                assert follower.stdout.readline() == "line 1.1199\n"
                operate_on(run, "log-level", "error", "scheduler")
                assert follower.stdout.readline() == "line 2.0\n"
                run.launcher.terminate()
                assert run.wait_exit() == 0
                assert follower.wait(TIMEOUT_S) == 1
            finally:
                follower.kill()


def test_drain_ends_the_server_in_good_order():
    with start() as run:
        run.wait_for(SERVING)
        result = operate_on(run, "drain", "--timeout-s", "7")
        assert (result.returncode, result.stdout) == (0, "drained: every request has ended\n")
        assert run.wait_exit() == 0
        assert "frontend     drain 7" in run.output
        assert run.output.count("drain ") == 1
        run.assert_nothing_left()


def test_a_drain_that_takes_too_long_ends_at_its_deadline():
    with start(frontend="never_finish_draining") as run:
        run.wait_for(SERVING)
        assert operate_on(run, "drain", "--timeout-s", "0.1").returncode == 0
        assert run.wait_exit() == 0
        run.assert_nothing_left()


def test_an_instruction_goes_to_each_process_and_every_result_comes_back():
    with start(scheduler="refuse_commands") as run:
        run.wait_for(SERVING)
        result = operate_on(run, "log-level", "debug", "frontend", "tokenizer", "--json")
        assert result.returncode == 0
        text = "shows lines of level debug and above"
        assert json.loads(result.stdout) == {"frontend": {"text": text}, "tokenizer": {"text": text}}
        to_all = operate_on(run, "log-level", "info")
        assert to_all.returncode == 1
        assert sorted(line.split()[0] for line in to_all.stdout.splitlines()) == sorted(NAMES)
        assert "scheduler    never\n" in to_all.stdout


def test_wrong_use_is_notified_and_has_its_exit_codes():
    with start() as run:
        run.wait_for(SERVING)
        unknown = operate_on(run, "logs", "schedular")
        assert unknown.returncode == 2
        expected = (
            "launch.py logs: there is no process 'schedular'; they are frontend, tokenizer, scheduler, detokenizer"
        )
        assert unknown.stderr == f"{expected}\n"
        as_json = operate_on(run, "logs", "schedular", "--json")
        assert as_json.returncode == 2
        assert json.loads(as_json.stdout)["error"]["reason"] == "unknown"
        assert operate("dance").returncode == 2
        assert operate_on(run, "logs").returncode == 2
        nowhere = operate("ps", "--run-dir", "/tmp/there-is-none")
        assert (nowhere.returncode, nowhere.stderr) == (3, "launch.py ps: no server runs in /tmp/there-is-none\n")


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["pss"], "launch.py: there is no command 'pss'; did you mean ps?\ncommands are ps, logs, "),
        (["joins"], "launch.py: there is no command 'joins'; did you mean join?\n"),
        (["status"], "launch.py: there is no command 'status'\ncommands are ps, "),
        (["start"], "calibrate, whatif; each has --help\nto start a server: python launch.py --model DIR"),
        (
            ["/tmp"],
            "launch.py: /tmp is not a command; to serve a model, use --model: python launch.py --model /tmp",
        ),
        (["a/b"], "launch.py: a/b is not a command; "),
        (["ps", "--prot", "1"], "launch.py ps: --prot: unknown flag; did you mean --port?\n"),
        (["ps", "all"], "launch.py ps: all: unknown argument; see --help for all\n"),
    ],
)
def test_a_wrong_command_or_flag_is_notified_with_what_was_meant(
    words: list[str], stated: str, capsys: pytest.CaptureFixture[str]
):
    assert run_command(words) == 2
    assert stated in capsys.readouterr().err


def test_of_several_servers_one_is_chosen_by_port():
    with start() as first, start() as second:
        first.wait_for(SERVING)
        second.wait_for(SERVING)
        ports = [run.run_dir.read_config().http.port for run in (first, second)]
        unclear = operate("ps")
        assert unclear.returncode == 2
        for port, run in zip(ports, (first, second), strict=True):
            assert f"--port {port}" in unclear.stderr
            assert str(run.run_dir.path) in unclear.stderr
        chosen = operate("ps", "--port", str(ports[1]), "--json")
        assert json.loads(chosen.stdout)["processes"][0]["pid"] == second.launcher.pid
        assert operate("ps", "--port", "1").returncode == 3
        assert is_running(first.launcher.pid)
