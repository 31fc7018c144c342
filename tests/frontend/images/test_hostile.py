"""Images made to break a decoder: no 500, no process lost, memory bounded."""

import asyncio
import functools
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from tests.frontend.frontend_run import FrontendRun, final, wait_until
from tests.frontend.images.mutations import check_all
from tests.frontend.images.pictures import PATH, image_part, picture, user, vision_config

NUM_SEEDS = 250
LARGE = 500 << 20
"""Zeros of this number of bytes are packed as a test begins: every worker imports this file."""

MAX_MB = 700
"""The frontend and its children together."""


def test_mutated_files(tmp_path: Path):
    found = asyncio.run(check_all(range(NUM_SEEDS), tmp_path))
    assert found.keys() == {200, 400}
    assert found[400] > NUM_SEEDS // 4


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def header(width: int, height: int, *, bits: int = 8, colours: int = 2) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)


@functools.cache
def zeros(num_bytes: int) -> bytes:
    """Returns zlib data of this many zeros."""
    packer = zlib.compressobj(9)
    pieces = [packer.compress(bytes(1 << 20)) for _ in range(num_bytes >> 20)]
    return b"".join([*pieces, packer.compress(bytes(num_bytes & ((1 << 20) - 1))), packer.flush()])


def tiff(*others: tuple[int, int, int, int], next_at: int = 0, strip_bytes: int = 1) -> bytes:
    """Returns a TIFF of one black pixel, with more entries in its directory, which is at 8."""
    short, long = 3, 4
    entries = [(256, short, 1, 1), (257, short, 1, 1), (258, short, 1, 8), (259, short, 1, 1), (262, short, 1, 1)]
    num_entries = len(entries) + 4 + len(others)
    end = 8 + 2 + 12 * num_entries + 4
    entries += [(273, long, 1, end), (277, short, 1, 1), (278, short, 1, 1), (279, long, 1, strip_bytes), *others]
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, num_entries) + packed + struct.pack("<I", next_at) + b"\0"


def many_frames(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("P", (1, 1)).save(file, "GIF")
    frame = b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0"
    return file.getvalue()[:-1] + frame * number + b";"


def large_exif() -> bytes:
    """Returns a JPEG with 150 segments of Exif data, whose directory refers to itself."""
    entries = b"".join(struct.pack("<HHII", 0x8769, 4, 1, 8) for _ in range(5000))
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 5000) + entries
    segment = b"\xff\xe1" + (len(exif[:65000]) + 2).to_bytes(2, "big") + exif[:65000]
    image = picture(kind="JPEG")
    return image[:2] + segment * 150 + image[2:]


BOMBS: dict[str, Callable[[], bytes]] = {
    "20000 x 20000 in 2 KB": lambda: png(
        header(20000, 20000, bits=1, colours=0), (b"IDAT", zeros(2 << 20)), (b"IEND", b"")
    ),
    "in both sides": lambda: png(header(0x7FFFFFFF, 0x7FFFFFFF), (b"IDAT", b""), (b"IEND", b"")),
    "more data than pixels": lambda: png(header(2, 2), (b"IDAT", zeros(LARGE)), (b"IEND", b"")),
    "a large text": lambda: png(header(2, 2), (b"zTXt", b"a\0\0" + zeros(LARGE)), (b"IDAT", zeros(14)), (b"IEND", b"")),
    "a large profile": lambda: png(
        header(2, 2), (b"iCCP", b"a\0\0" + zeros(LARGE)), (b"IDAT", zeros(14)), (b"IEND", b"")
    ),
    "50,000 frames": lambda: many_frames(50_000),
    "large Exif": large_exif,
    "a directory that follows itself": lambda: tiff(next_at=8),
    "a directory within itself": lambda: tiff((330, 4, 1, 8), (0x8769, 4, 1, 8)),
    "a strip of 4 GB": lambda: tiff(strip_bytes=2**32 - 1),
    "a million entries": lambda: (
        b"II*\0" + struct.pack("<IH", 8, 65535) + struct.pack("<HHII", 256, 4, 10**9, 8) * 65535
    ),
    "a wide bitmap": lambda: (
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 100, 0, 54, 40, 2**31 - 1, 1, 1, 24, 0, 0, 0, 0, 0, 0)
    ),
    "a large WebP": lambda: b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\xff\xff\xff\x0f\0\0\0\0\0\0\0\0\0",
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "FITS": lambda: b"SIMPLE  =                    T" + b" " * 2850,
    "nothing": lambda: b"",
}
VALID = {
    *("more data than pixels", "50,000 frames", "large Exif", "a strip of 4 GB"),
    *("a directory that follows itself", "a directory within itself"),
}
"""Their first pictures can be decoded."""


@pytest.fixture(scope="module")
def server() -> Iterator[FrontendRun]:
    with FrontendRun(vision_config()) as run:
        yield run


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(server: FrontendRun, name: str):
    if name in VALID:
        with server.call({"messages": [user(image_part(BOMBS[name]()))]}, path=PATH) as call:
            message = server.take_request()
            server.send(final(message))
            assert call.json()["object"] == "chat.completion"
    else:
        response = server.client.post(PATH, json={"messages": [user(image_part(BOMBS[name]()))]})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["message"].startswith("messages[0].content[0]: ")
    assert server.process.is_running()
    wait_until(lambda: server.gauge("image_bytes") == 0)
    processes = [server.process, *server.process.children(recursive=True)]
    used_mb = sum(process.memory_info().rss for process in processes if process.status() != psutil.STATUS_ZOMBIE) >> 20
    assert used_mb < MAX_MB


def test_health_answers_while_images_are_decoded(server: FrontendRun):
    """Reports 19 and 20: a photo of 48 megapixels takes a second to decode, and the event loop none of it."""
    file = io.BytesIO()
    Image.effect_noise((80, 60), 30).resize((8000, 6000)).save(file, "JPEG", quality=30)
    with server.call({"messages": [user(image_part(file.getvalue()))]}, path=PATH) as call:
        wait_until(lambda: server.gauge("image_bytes") > 0)
        seconds = [server.client.get("/health").elapsed.total_seconds() for _ in range(20)]
        message = server.take_request()
        server.send(final(message))
        assert call.json()["object"] == "chat.completion"
    assert sorted(seconds)[10] < 0.05
