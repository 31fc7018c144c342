import logging
from pathlib import Path

import msgspec
import pytest

from messages.channels import Receiver, Sender
from messages.config.server import Config, ModelFacts, RunConfig
from messages.frame_files import FrameReader, find_readers
from messages.ring.requests import StopSeen, ToScheduler
from runtime.black_box.frame_recorder import FrameRecorder, Recording, make_black_box
from runtime.run_dir import RunDir

FACTS = ModelFacts(model_dir="/m", tokenizer_dir="/m", served_names=("m",), vocab_size=1, max_model_len=2)


def config_of(**settings: object) -> Config:
    return Config(facts=FACTS, run=msgspec.convert(settings, RunConfig))


def test_both_ends_of_a_channel_keep_its_frames(tmp_path: Path):
    config = config_of(black_box_mb=1, record=str(tmp_path), record_gb=0.01)
    ends = {name: FrameRecorder(name, config, RunDir(tmp_path)) for name in ("detokenizer", "scheduler")}
    receiver: Receiver[ToScheduler] = Receiver(tmp_path / "scheduler.sock", ToScheduler)
    sender: Sender[ToScheduler] = Sender(tmp_path / "scheduler.sock")
    sender.on_frame = ends["detokenizer"].sent_to("scheduler")
    receiver.on_frame = ends["scheduler"].received_as("scheduler")
    for uid in (1, 2):
        sender.send(StopSeen(uid, 0))
    received: list[ToScheduler] = []
    while len(received) < 2:
        receiver.socket.poll(10_000)
        received += receiver.receive()
    for folder in (tmp_path, tmp_path / "black-box"):
        by_process = {reader.process: reader.read() for reader in find_readers(folder)}
        assert [record.decode() for record in by_process["scheduler"]] == received
        assert [record.is_sent for record in by_process["scheduler"]] == [False, False]
        assert [record.is_sent for record in by_process["detokenizer"]] == [True, True]
        assert [record.frame for record in by_process["detokenizer"]] == [
            record.frame for record in by_process["scheduler"]
        ]
    sender.close()
    receiver.close()


def test_without_a_black_box_nothing_is_called_and_nothing_written(tmp_path: Path):
    recorder = FrameRecorder("scheduler", config_of(black_box_mb=0), RunDir(tmp_path))
    assert recorder.sent_to("detokenizer") is recorder.received_as("scheduler") is None
    assert not list(tmp_path.iterdir())


def test_the_whole_ring_keeps_to_its_limit_through_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_dir = RunDir(tmp_path)
    for pid in range(5):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        for name in ("frontend", "tokenizer", "scheduler", "scheduler-2", "detokenizer"):
            FrameRecorder(name, config_of(black_box_mb=2, data_parallel=2), run_dir)
    files = list(run_dir.black_box.iterdir())
    assert sorted(reader.pid for reader in find_readers(run_dir.black_box)) == [3] * 5 + [4] * 5
    assert sum(file.stat().st_size for file in files) <= 2 * 2**20 + 160 * len(files)


def test_a_recording_keeps_every_frame_until_its_limit(tmp_path: Path):
    recording = Recording(tmp_path, "scheduler", 4 * 4096)
    frames = [number.to_bytes(16, "little") + bytes(500) for number in range(100)]
    for number, frame in enumerate(frames):
        recording.add(1, b"detokenizer", frame)
        kept = [record.frame for reader in find_readers(tmp_path) for record in reader.read()]
        assert kept == frames[max(0, number + 1 - len(kept)) : number + 1]
        assert len(kept) == number + 1 or len(kept) > 20
        assert len(list(tmp_path.iterdir())) <= 4
    recording.close()


def test_a_frame_larger_than_a_file_of_a_recording_costs_no_others(tmp_path: Path):
    recording = Recording(tmp_path, "scheduler", 4 * 4096)
    for size in (100, 5000, 5000, 100):
        recording.add(1, b"detokenizer", bytes(16 + size))
    assert [record.is_cut for record in FrameReader(next(tmp_path.iterdir())).read()] == [False, True, True, False]


def test_a_full_disk_ends_the_keeping_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    recording = Recording(tmp_path, "scheduler", 4 * 4096)

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            recording.add(1, b"detokenizer", bytes(500))
        recorder = FrameRecorder("scheduler", config_of(), RunDir(tmp_path))
    assert recorder.sent_to("detokenizer") is None
    assert caplog.text.count("No space left") == 2
    assert len(list(tmp_path.glob("*.frames"))) == 1
    recording.close()


def test_only_this_user_may_read_them(tmp_path: Path):
    writer = make_black_box(tmp_path / "box", "tokenizer", 4096)
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "box", writer.path)] == [0, 0]


def test_files_of_other_processes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for pid, name in enumerate(["tokenizer-2", "tokenizer", "tokenizer", "tokenizer"]):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        make_black_box(tmp_path / "box", name, 4096)
    assert {file.name for file in (tmp_path / "box").iterdir()} == {
        "tokenizer-2.0.frames",
        "tokenizer.2.frames",
        "tokenizer.3.frames",
    }
