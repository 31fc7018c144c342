from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from extras.remote.file_messages import FileList, ListFiles, ModelPart
from extras.remote.join_keys import make_keys
from extras.remote.messages import JOIN_VERSION, FilePart, Join
from extras.remote.proxy import FRAME_BYTES, Proxy, find_refusal
from messages import VERSION
from messages.columns import pack_int32, pack_int64
from messages.config.scheduling import SchedulingConfig
from messages.control.admin import Acknowledged, Failed, InstructionDone
from messages.frames import HEADER
from messages.ring.replies import DetokenizeMsg
from messages.ring.uids import UIDS_PER_BLOCK
from runtime.run_dir import RunDir


def test_another_version_of_the_program_is_turned_away_for_good():
    for join in (Join(JOIN_VERSION + 1, VERSION, "box"), Join(JOIN_VERSION, "0.0.0-other", "box")):
        refusal = find_refusal(join, present_host="")
        assert refusal is not None
        assert join.release in refusal.reason
        assert "install the same on both machines" in refusal.reason
        assert not refusal.may_try_again


def test_a_second_engine_may_try_again_when_the_first_has_left():
    join = Join(JOIN_VERSION, VERSION, "box")
    refusal = find_refusal(join, present_host="other-box")
    assert refusal is not None
    assert "an engine on other-box has joined here" in refusal.reason
    assert refusal.may_try_again
    assert find_refusal(join, present_host="") is None


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """A proxy of engine 2 that an engine has joined and serves."""
    run_dir = RunDir(tmp_path)
    run_dir.head_keys.write_bytes(msgspec.json.encode(make_keys()[0]))
    link = SimpleNamespace(
        run_dir=run_dir,
        name="scheduler-2",
        config=SimpleNamespace(extras={}),
        waiter=Mock(),
        wake=lambda: None,
    )
    proxy = Proxy(cast("Any", link), "tcp://127.0.0.1:*")
    proxy._outbox = Mock()
    proxy._inbox = Mock()
    channel, proxy._channel = proxy._channel, Mock()
    yield proxy
    channel.close()


def step_frame(*uids: int, engine: int = 2, attempts: bytes | None = None) -> bytes:
    zeros = pack_int32([0] * len(uids))
    step = DetokenizeMsg(1, pack_int64(uids), zeros if attempts is None else attempts, zeros, engine=engine)
    return HEADER.pack(7, 1) + msgspec.msgpack.encode(step)


def test_frames_that_fit_continue_and_others_are_the_end_of_the_engine(proxy: Proxy, caplog: pytest.LogCaptureFixture):
    outbox = cast("Mock", proxy._outbox)
    proxy._link.run_dir.socket("frontend.3").touch()
    for good in (step_frame(1, 2), step_frame(3 * UIDS_PER_BLOCK), step_frame(2 * UIDS_PER_BLOCK)):
        proxy._hand_on_frame(outbox, good)
        outbox.hand_on.assert_called_with(good)
    for bad in (step_frame(1, attempts=b""), step_frame(1, engine=1), step_frame(4 * UIDS_PER_BLOCK), b"x"):
        with pytest.raises(SystemExit):
            proxy._hand_on_frame(outbox, bad)
    assert outbox.hand_on.call_count == 3
    assert "is refused: DetokenizeMsg: 1 uids and 0 attempts" in caplog.text
    assert "a request of frontend 4, which never existed" in caplog.text


def test_hidden_states_larger_than_those_of_a_step_are_the_end_of_the_stage(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
):
    outbox = cast("Mock", proxy._outbox)
    scheduling = SchedulingConfig(max_num_seqs=2, max_num_batched_tokens=600)
    proxy._link.config = cast("Any", SimpleNamespace(scheduling=scheduling, facts=SimpleNamespace(hop_size=7)))
    largest = bytes(4 * 600 * 7 + HEADER.size)
    proxy._hand_on_hop(outbox, largest)
    outbox.hand_on.assert_called_once_with(largest)
    with pytest.raises(SystemExit):
        proxy._hand_on_hop(outbox, largest + bytes(FRAME_BYTES))
    assert "is refused: 20912 bytes of hidden states, and a step has 20896 at most" in caplog.text


def test_a_profile_that_cannot_be_kept_is_no_reason_to_lose_the_engine(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    done = InstructionDone(7, Acknowledged("/there/scheduler-2-1-1.profile"))
    proxy._begin_fetch(done)
    assert proxy._fetch is not None
    proxy._receive_profile(proxy._fetch, FilePart("scheduler-2-1-1.profile", b"\xc1", 1, 0))
    assert proxy._fetch is None
    assert "the engine's profile was not saved" in caplog.text

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    result = proxy._begin_fetch(done).result
    assert isinstance(result, Failed)
    assert "No space left on device" in result.message


def test_files_are_sent_to_the_engine_that_has_joined_alone_and_their_progress_is_shown(proxy: Proxy):
    proxy._files = files = Mock()
    proxy._joiner, proxy._host = b"joined", "box"
    proxy._receive(b"other", ListFiles("model"))
    files.ask.assert_not_called()
    proxy._receive(b"joined", ListFiles("model"))
    files.ask.assert_called_once_with(b"joined", ListFiles("model"))
    phases = proxy._link.phase = Mock()
    part, files.fraction = ModelPart("model.safetensors", 0, b"x"), 0.25
    files.answers.return_value = [(b"joined", FileList(())), (b"joined", part), (b"left", part)]
    proxy._send_files()
    phases.assert_called_once_with("box fetches model.safetensors", 0.25)
    assert cast("Mock", proxy._channel).send.call_count == 3
