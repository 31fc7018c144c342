import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from messages.frame_files import DATA, FrameFileError, FrameReader
from messages.frames import HEADER
from messages.ring.requests import StopSeen
from runtime.black_box.frame_writer import FrameWriter

CAPACITY = 4096
KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from runtime.black_box.frame_writer import FrameWriter
writer = FrameWriter(Path(sys.argv[1]), "scheduler", 4096)
for number in range(1000):
    writer.add(1, b"detokenizer", number.to_bytes(20, "little"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def frame_of(number: int, size: int) -> bytes:
    return HEADER.pack(7, number) + bytes(size)


def test_what_was_written_last_is_read_in_order_with_its_stamps(tmp_path: Path):
    before_ns, before_wall_ns = time.monotonic_ns(), time.time_ns()
    writer = FrameWriter(tmp_path / "a.frames", "scheduler", CAPACITY)
    writer.add(1, b"detokenizer", frame_of(1, 5))
    writer.add(0, b"scheduler", frame_of(2, 0))
    first, second = FrameReader(tmp_path / "a.frames").read()
    assert (first.process, first.is_sent, first.receiver) == ("scheduler", True, "detokenizer")
    assert (second.is_sent, second.receiver, second.sender_id, second.number) == (False, "scheduler", 7, 2)
    assert (first.frame, first.is_cut) == (frame_of(1, 5), False)
    assert before_ns <= first.monotonic_ns <= second.monotonic_ns <= time.monotonic_ns()
    assert abs(first.wall_ns - before_wall_ns) < 60e9


def test_a_ring_keeps_the_last_frames_whatever_their_sizes(tmp_path: Path):
    chance = random.Random(5)
    writer = FrameWriter(tmp_path / "a.frames", "scheduler", CAPACITY)
    follower = FrameReader(tmp_path / "a.frames")
    unread: list[bytes] = []
    for number in range(800):
        frame = frame_of(number, chance.randint(1, CAPACITY // 4 - HEADER.size))
        writer.add(0, b"scheduler-" + b"1" * chance.randint(1, 30), frame)
        unread.append(frame)
        kept = [record.frame for record in FrameReader(tmp_path / "a.frames").read()]
        assert kept[-1] == frame
        assert sum(map(len, kept)) > CAPACITY // 4 or number < 10
        if chance.random() < 0.3:
            news = [record.frame for record in follower.read()]
            assert news == unread[len(unread) - len(news) :]
            unread.clear()
    assert (tmp_path / "a.frames").stat().st_size == DATA + CAPACITY


def test_a_frame_that_is_too_large_leaves_its_number(tmp_path: Path):
    writer = FrameWriter(tmp_path / "a.frames", "scheduler", CAPACITY)
    writer.add(1, b"detokenizer", frame_of(9, CAPACITY))
    (record,) = FrameReader(tmp_path / "a.frames").read()
    assert (record.number, record.is_cut) == (9, True)


def test_the_last_frames_outlive_a_process_that_is_killed(tmp_path: Path):
    command = [sys.executable, "-c", KILLED_WRITER, str(tmp_path / "a.frames")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -9
    numbers = [int.from_bytes(record.frame, "little") for record in FrameReader(tmp_path / "a.frames").read()]
    assert len(numbers) > 20
    assert numbers == list(range(1000 - len(numbers), 1000))


def test_records_that_are_written_over_while_they_are_read_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = FrameWriter(tmp_path / "a.frames", "scheduler", CAPACITY)
    for number in range(40):
        writer.add(0, b"scheduler", frame_of(number, 50))
    reader = FrameReader(tmp_path / "a.frames")
    read_position = reader._read_position
    calls: list[int] = []

    def read_position_late(offset: int) -> int:
        calls.append(offset)
        if len(calls) == 3:  # the bytes have been read
            for number in range(40, 60):
                writer.add(0, b"scheduler", frame_of(number, 50))
        return read_position(offset)

    monkeypatch.setattr(reader, "_read_position", read_position_late)
    numbers = [record.number for record in reader.read()]
    assert numbers == list(range(40 - len(numbers), 40))
    assert 0 < len(numbers) < 30
    assert reader.read()[-1].number == 59


def test_a_closed_file_ends_with_its_last_record(tmp_path: Path):
    writer = FrameWriter(tmp_path / "a.frames", "scheduler", CAPACITY)
    writer.add(1, b"scheduler", frame_of(1, 8))
    writer.close()
    assert (tmp_path / "a.frames").stat().st_size < DATA + 100
    assert len(FrameReader(tmp_path / "a.frames").read()) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "not a file of frames"),
        (b"x" * 500, "not a file of frames"),
        (b"SLUICEFR\x63" + bytes(200), "format 99, this program reads 2: use the one that wrote it"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, text: str):
    (tmp_path / "a.frames").write_bytes(content)
    with pytest.raises(FrameFileError, match=text):
        FrameReader(tmp_path / "a.frames")


def test_a_frame_is_decoded_by_its_receiver(tmp_path: Path):
    writer = FrameWriter(tmp_path / "a.frames", "detokenizer", CAPACITY)
    message = b"\x93\xa8StopSeen\x07\x01"
    writer.add(1, b"scheduler", HEADER.pack(1, 1) + message)
    (record,) = FrameReader(tmp_path / "a.frames").read()
    assert record.decode() == StopSeen(7, 1)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path):
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "a.frames").symlink_to(tmp_path / "letter")
    with pytest.raises(OSError, match=r"a\.frames"):
        FrameWriter(tmp_path / "a.frames", "scheduler", CAPACITY)
    assert (tmp_path / "letter").read_text() == "dear"
