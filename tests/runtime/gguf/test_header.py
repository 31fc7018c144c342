"""Damaged headers: each fault is named with its file, place and value, and no memory is taken by the header's word."""

import struct
from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from runtime.gguf.gguf_file import read_gguf
from runtime.gguf.header import read_header
from tests.gguf_files import STRING, Stored, Typed, gguf_bytes, text, write_gguf

METADATA: dict[str, Any] = {"general.architecture": "llama", "llama.block_count": 2, "words": ["a", "bc"]}
TENSORS = {"a": Stored("F32", (2, 8)), "b": Stored("Q8_0", (2, 32))}
WHOLE = gguf_bytes(METADATA, TENSORS)


def faults(cases: list[tuple[bytes, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("content", "complaint"), cases, ids=[complaint for _, complaint in cases])


def with_key(kind: bytes) -> bytes:
    """Returns a file with one key, whose type and value are `kind`."""
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("key") + kind


def with_tensor(described: bytes) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + text("weight") + described + bytes(1000)


@faults(
    [
        (b"", r"begins with b'', not b'GGUF'"),
        (b"GGML" + WHOLE[4:], r"is not a GGUF file: it begins with b'GGML'"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"is a pointer of Git LFS"),
        (b"GGUF\x01\x00\x00\x00" + WHOLE[8:], r"header, at byte 8: version 1 of the format; supported are 2 and 3"),
        (b"GGUF\x00\x00\x00\x03" + WHOLE[8:], r"big-endian; convert it"),
        (WHOLE[:20], r"header, at byte 16: 8 bytes are due here, but the file ends at byte 20"),
        (WHOLE[:100], r"metadata 'llama.block_count', at byte 98: 4 bytes are due here, but the file ends at byte 100"),
        (WHOLE[:-29], r"tensor 'b', at byte \d+: its 68 bytes go beyond the end of the file at byte \d+"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), rf"{1 << 60} tensors; the limit is 131072"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), rf"{1 << 60} metadata keys; the limit is 65536"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 9), r"metadata key 1 of 9, at byte 24: 8 bytes are due"),
    ]
)
def test_the_frame_of_a_file(tmp_path: Path, content: bytes, complaint: str):
    check(tmp_path, content, complaint)


@faults(
    [
        (with_key(struct.pack("<IQ", STRING, 1 << 60)), rf"'key', at byte 47: {1 << 60} bytes are due here"),
        (with_key(struct.pack("<IQ", STRING, (1 << 64) - 1)), r"'key', at byte 47: 18446744073709551615 bytes are due"),
        (with_key(struct.pack("<IIQ", 9, STRING, 10**9)), r"8000000000 bytes are due here, but the file ends"),
        (with_key(struct.pack("<IIQ", 9, 6, 10**6)), r"4000000 bytes are due here, but the file ends"),
        (with_key(struct.pack("<IIQ", 9, STRING, 10**6)), r"8000000 bytes are due here, but the file ends"),
        (with_key(struct.pack("<IIQQ", 9, STRING, 1, 1 << 63)), r"bytes are due here, but the file ends"),
        (with_key(struct.pack("<IIQIQ", 9, 9, 1, 4, 0)), r"an array of arrays is not supported"),
        (with_key(struct.pack("<IIQ", 9, 13, 1)), r"there is no value type 13"),
        (with_key(struct.pack("<I", 99)), r"there is no value type 99"),
        (gguf_bytes({"key": 1})[:16] + b"\2" + bytes(7) + 2 * gguf_bytes({"key": 1})[24:], r"'key'.*is there twice"),
        (gguf_bytes({"k" * 2000: 1}), r"a text of 2000 bytes; the limit is 1024"),
        (gguf_bytes({"general.alignment": 0}), r"'general.alignment'.* 0 is not a power of two"),
        (gguf_bytes({"general.alignment": 48}), r"48 is not a power of two"),
        (gguf_bytes({"general.alignment": "x" * 999}), r"xxx…' is not a power of two"),
    ]
)
def test_metadata(tmp_path: Path, content: bytes, complaint: str):
    check(tmp_path, content, complaint)


@pytest.mark.parametrize("value", [b"\xff\xfe", [b"good", b"\xff\xfe"]])
def test_texts_that_are_not_utf8_are_refused_when_they_are_read(tmp_path: Path, value: Any):
    metadata = read_gguf(write_gguf(tmp_path / "m.gguf", {"key": value})).metadata
    with pytest.raises(BootError, match=r"m\.gguf: metadata 'key', .*the text b'\\xff\\xfe' is not UTF-8"):
        _ = metadata["key"]


@faults(
    [
        (with_tensor(struct.pack("<I", 0)), r"tensor 'weight'.*0 dimensions, not 1 to 4"),
        (with_tensor(struct.pack("<I", 1 << 31)), r"2147483648 dimensions"),
        (with_tensor(struct.pack("<I2Q", 2, 1 << 40, 1 << 40)), r"a shape of \[1099511627776, 1099511627776\]"),
        (with_tensor(struct.pack("<I2Q", 2, 0, 4)), r"a shape of \[4, 0\] is not possible"),
        (with_tensor(struct.pack("<IQIQ", 1, 32, 4, 0)), r"there is no tensor type 4, or this version"),
        (with_tensor(struct.pack("<IQIQ", 1, 33, 8, 0)), r"rows of 33 values are not divisible by the 32 .* Q8_0"),
        (with_tensor(struct.pack("<IQIQ", 1, 8, 0, 4)), r"its offset 4 is not a multiple of 32"),
        (with_tensor(struct.pack("<IQIQ", 1, 8, 0, 1 << 63)), r"its 32 bytes go beyond the end"),
        (with_tensor(struct.pack("<IQIQ", 1, 1 << 60, 0, 0)), r"its 4611686018427387904 bytes go beyond the end"),
        (gguf_bytes({}, {"n" * 65: Stored("F32", (1,))}), r"tensor 1 of 1.*65 bytes; the limit is 64"),
        (gguf_bytes({}, {"a": Stored("F32", (16,)), "b": Stored("F32", (1,), offset=32)}), r"'b'.* overlaps .* 'a'"),
        (
            gguf_bytes({}, {"a": Stored("F32", (1,)), "b": Stored("F32", (1,))}).replace(text("b"), text("a")),
            r"'a'.*twice",
        ),
    ]
)
def test_tensors(tmp_path: Path, content: bytes, complaint: str):
    check(tmp_path, content, complaint)


def check(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(BootError, match=rf"damaged\.gguf: (?s:.*){complaint}"):
        read_gguf(path)


def test_a_header_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.gguf.header.MAX_HEADER_BYTES", 1000)
    path = write_gguf(tmp_path / "m.gguf", {"key": "x" * 2000, "other": 1})
    with pytest.raises(BootError, match="the header is longer than 1000 bytes"):
        read_header(path)


def test_a_file_that_cannot_be_opened(tmp_path: Path):
    with pytest.raises(BootError, match=r"absent\.gguf: cannot be read: No such file"):
        read_gguf(tmp_path / "absent.gguf")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "absent.gguf")
    with pytest.raises(BootError, match=r"link\.gguf \(a link to .*absent\.gguf\): cannot be read: No such file"):
        read_gguf(tmp_path / "link.gguf")


def test_types_of_values_are_kept(tmp_path: Path):
    metadata = {"u64": Typed(10, 1 << 63), "floats": Typed(12, [0.5, 0.25]), "empty": []}
    assert dict(read_gguf(write_gguf(tmp_path / "m.gguf", metadata)).metadata) == {
        "u64": 1 << 63,
        "floats": [0.5, 0.25],
        "empty": [],
    }
