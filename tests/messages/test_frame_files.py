"""Frames recorded by another version: `recorded.frames` has a message of each kind, `recorded.jsonl` their content.

Both were made with the first version of the format and stay: fields added since then have their defaults. If a change
of messages must break this, raise `FORMAT` in `messages/frame_files.py`, so that older files are rejected, and write
both again: `python -m tests.messages.test_frame_files`.
"""

from pathlib import Path

import msgspec

from messages.frame_files import DATA, FORMAT, IS_SENT, FrameReader, find_readers
from messages.frames import HEADER
from messages.ring.plain import to_plain
from messages.schema import SCHEMA_VERSION
from runtime.black_box.frame_writer import FrameWriter
from tests.messages.samples import samples

FRAMES = Path(__file__).parent / "recorded.frames"
EXPECTED = FRAMES.with_suffix(".jsonl")
CAPACITY = 1 << 16


def make_recorded() -> None:
    writer = FrameWriter(FRAMES, "tokenizer", CAPACITY)
    lines: list[bytes] = []
    for number, (kind, message) in enumerate(samples()):
        frame = HEADER.pack(9, number) + msgspec.msgpack.encode(message)
        writer.add(IS_SENT, kind.encode(), frame)
        lines.append(msgspec.json.encode(to_plain(message)))
    writer.close()
    EXPECTED.write_bytes(b"\n".join(lines) + b"\n")


def test_frames_of_earlier_versions_decode_to_what_they_reported():
    expected = [msgspec.json.decode(line) for line in EXPECTED.read_bytes().splitlines()]
    records = FrameReader(FRAMES).read()
    assert len(records) == len(expected) > 30
    for record, message in zip(records, expected, strict=True):
        assert to_plain(record.decode()) == message


def test_a_reader_reports_of_another_version(tmp_path: Path):
    data = bytearray(FRAMES.read_bytes())
    data[16:24] = SCHEMA_VERSION.to_bytes(8, "little")
    (tmp_path / "same.frames").write_bytes(data)
    data[16:24] = (SCHEMA_VERSION + 1).to_bytes(8, "little")
    (tmp_path / "other.frames").write_bytes(data)
    assert {reader.path.stem: reader.is_of_this_version for reader in find_readers(tmp_path)} == {
        "same": True,
        "other": False,
    }


def test_the_header_is_what_the_page_reports():
    header = FRAMES.read_bytes()[:DATA]
    assert header.startswith(b"SLUICEFR" + FORMAT.to_bytes(4, "little"))
    assert b"tokenizer\0" in header


if __name__ == "__main__":
    make_recorded()
