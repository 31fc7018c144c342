"""`launch.py replay` on a recording, with a scheduler's code in place of a server: its output and exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extras.faults.faults import read_poisons, write_poisons
from extras.faults.messages import Poison
from messages.columns import pack_int32
from messages.engine_names import engine_name
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from supervisor.cli.operate import operate
from supervisor.cli.redact import redact_snapshot
from tests.extras.replay.recorded_runs import SchedulerAlone, config_of, record

UIDS = (1, 2, 3)
NUM_ARGUMENTS = 4
"""The arguments of a stand-in: configuration, flags, processes, channels."""

REQUESTS = [
    UserMsg(uid, 0, pack_int32([uid, 5]), SamplingParams(max_tokens=4, temperature=0.0), Stamps()) for uid in UIDS
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path, "scheduler", SchedulerAlone(), REQUESTS)
    return tmp_path


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Makes the command start such a server each time; the returned list has the arguments of each start."""

    def give(start: Callable[[], SchedulerAlone] = SchedulerAlone) -> list[Any]:
        calls: list[Any] = []

        class Started:
            def __init__(self, *arguments: Any):
                calls.extend(arguments)

            def __enter__(self) -> SchedulerAlone:
                return start()

            def __exit__(self, *error: object) -> None:
                pass

        monkeypatch.setattr("extras.replay.command.StandIn", Started)
        return calls

    return give


def test_the_same(folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]):
    calls = play()
    assert operate(["replay", str(folder), "--only", "scheduler", "--", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == "the same: 3 requests, 3 attempts, 12 tokens\n"
    assert calls == [config_of(folder), ["--dtype", "float32"], ("scheduler",), ["detokenizer"]]


def test_a_directory_with_a_black_box_in_it(tmp_path: Path, play: Callable[..., list[Any]]):
    (tmp_path / "black-box").mkdir()
    record(tmp_path / "black-box", "scheduler", SchedulerAlone(), REQUESTS)
    play()
    assert operate(["replay", str(tmp_path), "--only", "scheduler"]) == 0


def test_a_request_that_kills_is_named_again(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    calls = play(lambda: SchedulerAlone(dies_of={2}))
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 1
    output = capsys.readouterr().out
    assert "scheduler was killed by SIGSEGV" in output
    assert "requests that ran: 1, 2\n" in output
    assert "request 2, attempt 0 kills it: frame 2 of sender a on ?:scheduler\n" in output
    assert "recorded  ended there (length), after 4 tokens" in output
    assert len(calls) == 2 * NUM_ARGUMENTS, "the latest request was tried alone, and was it"


def test_requests_that_kill_only_together_are_all_named(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    calls = play(lambda: SchedulerAlone(dies_of={1, 3}))
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 1
    names = ", ".join(f"request {uid}, attempt 0" for uid in UIDS)
    assert f"none of the requests that ran kills it alone: {names}\n" in capsys.readouterr().out
    assert len(calls) <= 4 * NUM_ARGUMENTS


def test_a_crash_that_does_not_come_again_is_notified_and_what_is_redacted_is_not_compared(
    tmp_path: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    black_box = tmp_path / "black-box"
    black_box.mkdir()
    record(black_box, "scheduler", SchedulerAlone(), REQUESTS)
    (tmp_path / "manifest.json").write_text(json.dumps({"process": "scheduler", "text": "was killed by SIGKILL"}))
    server = SchedulerAlone()
    calls = play(lambda: server)
    assert operate(["replay", str(tmp_path), "--only", "scheduler"]) == 0
    assert "does not come again: scheduler: was killed by SIGKILL" in capsys.readouterr().err
    write_poisons(black_box, [Poison("kill", token_ids=pack_int32([1, 5])), Poison("kill", 2)])
    redact_snapshot(tmp_path)
    assert [poison.uid for poison in read_poisons(black_box)] == [0, 2]
    assert pack_int32([1, 5]) not in [poison.token_ids for poison in read_poisons(black_box)]
    server = SchedulerAlone()
    assert operate(["replay", str(tmp_path), "--only", "scheduler"]) == 2
    assert "the recording is redacted: " in capsys.readouterr().err
    assert calls[NUM_ARGUMENTS + 1] == ["--enable-fault-injection"]
    assert [poison.uid for poison in server.poisons] == [0, 2]


@pytest.mark.parametrize(("flags", "engines"), [((), (1, 2, 3)), (("--data-parallel", "2"), (1, 2, 1))])
def test_each_request_goes_to_the_engine_that_it_had(
    tmp_path: Path,
    play: Callable[..., list[Any]],
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    engines: tuple[int, ...],
):
    """A command had added the third one."""
    for engine in (1, 2, 3):
        request = msgspec.structs.replace(REQUESTS[engine - 1], engine=engine)
        record(tmp_path, engine_name(engine), SchedulerAlone(), [request], pid=engine)
    server = SchedulerAlone()
    calls = play(lambda: server)
    assert operate(["replay", str(tmp_path), "--only", "scheduler", "--", *flags]) == 0
    output = capsys.readouterr()
    assert calls[0].run.data_parallel == len(set(engines))
    assert server.receivers == [engine_name(engine) for engine in engines]
    assert ("what 3 engines served goes to 2" in output.err) == bool(flags)
    assert ("(scheduler 1, scheduler-2 1, scheduler-3 1)" in output.out) == (not flags)


def test_a_difference_is_shown_with_what_rounding_may_do(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    server = SchedulerAlone()
    send = server.send

    def send_another(receiver: str, message: UserMsg) -> None:
        send(receiver, msgspec.structs.replace(message, input_ids=pack_int32([9])) if message.uid == 2 else message)

    server.send = send_another  # type: ignore[method-assign]
    play(lambda: server)
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("request 2, attempt 0: token 0 differs\n  recorded  ")
    assert "(on a GPU without --deterministic the sums of a row may round otherwise" in output
    assert operate(["replay", str(folder), "--only", "scheduler", "--", "--device", "cpu"]) == 1
    assert "on a GPU" not in capsys.readouterr().out


def test_another_model_in_the_place_of_the_recorded_one_is_notified(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    (folder / "model.safetensors").write_bytes(b"weights")
    record(folder, "scheduler", SchedulerAlone(), REQUESTS)
    (folder / "model.safetensors").write_bytes(b"Weights")
    play()
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "the model has changed since" in line)
    assert "model.safetensors" in line
