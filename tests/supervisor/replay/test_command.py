"""`launch.py replay` on a recording, with a scheduler's code in place of a server: what it says and its exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.columns import pack_int32
from messages.requests import SamplingParams, Stamps, UserMsg
from supervisor.cli.operate import operate
from tests.supervisor.replay.recorded_runs import SchedulerAlone, config_of, record

UIDS = (1, 2, 3)
REQUESTS = [
    UserMsg(uid, 0, pack_int32([uid, 5]), SamplingParams(max_tokens=4, temperature=0.0), Stamps()) for uid in UIDS
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path, "scheduler", SchedulerAlone(), REQUESTS)
    return tmp_path


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[SchedulerAlone], list[Any]]:
    """Has the command find this server; what it was started with is in the list that is returned."""

    def give(server: SchedulerAlone) -> list[Any]:
        calls: list[Any] = []

        class Started:
            def __init__(self, *arguments: Any):
                calls.extend(arguments)

            def __enter__(self) -> SchedulerAlone:
                return server

            def __exit__(self, *error: object) -> None:
                pass

        monkeypatch.setattr("supervisor.replay.command.StandIn", Started)
        return calls

    return give


def test_the_same(folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]):
    calls = play(SchedulerAlone())
    assert operate(["replay", str(folder), "--only", "scheduler", "--", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == "the same: 3 requests, 3 attempts, 12 tokens\n"
    assert calls == [config_of(folder), ["--dtype", "float32"], ("scheduler",), ["detokenizer"]]


def test_a_directory_with_a_black_box_in_it(tmp_path: Path, play: Callable[..., list[Any]]):
    (tmp_path / "black-box").mkdir()
    record(tmp_path / "black-box", "scheduler", SchedulerAlone(), REQUESTS)
    play(SchedulerAlone())
    assert operate(["replay", str(tmp_path), "--only", "scheduler"]) == 0


def test_a_request_that_kills_is_named_again(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    play(SchedulerAlone(dies_of=2))
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 1
    output = capsys.readouterr().out
    assert "scheduler was killed by SIGSEGV" in output
    assert "requests that ran: 1, 2\n" in output


def test_a_difference_is_shown_with_what_rounding_may_do(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    server = SchedulerAlone()
    send = server.send

    def send_another(receiver: str, message: UserMsg) -> None:
        send(receiver, msgspec.structs.replace(message, input_ids=pack_int32([9])) if message.uid == 2 else message)

    server.send = send_another  # type: ignore[method-assign]
    play(server)
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("request 2, attempt 0: token 0 differs\n  recorded  ")
    assert "(--dtype auto: in 16 bits" in output
    assert operate(["replay", str(folder), "--only", "scheduler", "--", "--dtype", "float32"]) == 1
    assert "16 bits" not in capsys.readouterr().out


def test_another_model_in_the_place_of_the_recorded_one_is_told(
    folder: Path, play: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
):
    (folder / "model.safetensors").write_bytes(b"weights")
    record(folder, "scheduler", SchedulerAlone(), REQUESTS)
    (folder / "model.safetensors").write_bytes(b"Weights")
    play(SchedulerAlone())
    assert operate(["replay", str(folder), "--only", "scheduler"]) == 0
    (note,) = (line for line in capsys.readouterr().err.splitlines() if "the model has changed since" in line)
    assert "model.safetensors" in note
