"""Damaged and malicious image files, made from seeds.

    python -m tests.frontend.images.mutations 10000 [FIRST_SEED]

checks this number of them as a frontend does, and prints what became of them.
"""

import asyncio
import io
import random
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from frontend.images.intake import ImageIntake
from frontend.images.parts import ImagePart
from frontend.requests.trace import RequestTrace
from messages.errors import RequestError
from tests.frontend.images.pictures import data_url, vision_config

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")
MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P", "RGB"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "BMP": ("1", "L", "P", "RGB"),
}
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "PNG": ({}, {"interlace": 1}, {"exif": True}),
    "JPEG": ({}, {"progressive": True}, {"exif": True}, {"quality": 5, "subsampling": 0}),
    "WEBP": ({}, {"lossless": True}, {"exif": True}, {"animated": True}),
    "GIF": ({}, {"animated": True}, {"interlace": 0}),
    "TIFF": (
        *({}, {"exif": True}, {"animated": True}),
        *({"compression": name} for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4")),
    ),
    "BMP": ({},),
}
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def undamaged(random_: random.Random) -> bytes:
    """Returns a valid file of a random kind, mode and size."""
    kind = random_.choice(KINDS)
    mode = random_.choice(MODES[kind])
    options = dict(random_.choice(OPTIONS[kind]))
    if options.get("compression") == "group4":
        mode = "1"
    if options.get("compression") == "jpeg":
        mode = "RGB"
    size = random_.choice([(1, 1), (3, 200), (17, 9), (64, 64), (200, 3)])
    images = [_noise(random_, mode, size) for _ in range(3 if options.pop("animated", False) else 1)]
    if options.pop("exif", False):
        exif = Image.Exif()
        exif[0x0112] = random_.randint(0, 9)
        exif[0x010E] = "x" * random_.choice([1, 1000])
        options["exif"] = exif
    if len(images) > 1:
        options |= {"save_all": True, "append_images": images[1:]}
    file = io.BytesIO()
    images[0].save(file, kind, **options)
    return file.getvalue()


def _noise(random_: random.Random, mode: str, size: tuple[int, int]) -> Image.Image:
    small = Image.frombytes("RGB", (8, 8), random_.randbytes(192))
    if mode in ("I;16", "F"):
        return small.convert("L").convert(mode).resize(size)
    return small.resize(size).convert(mode)


def mutated(seed: int) -> bytes:
    """Returns the damaged file of this seed."""
    random_ = random.Random(seed)
    data = bytearray(undamaged(random_))
    for _ in range(random_.choice([1, 1, 2, 5, 20])):
        random_.choice(MUTATIONS)(random_, data)
    if data[:4] == b"\x89PNG" and random_.random() < 0.8:
        _mend_png(data)
    return bytes(data)


def _flip(random_: random.Random, data: bytearray) -> None:
    if data:
        data[_place(random_, data)] ^= 1 << random_.randrange(8)


def _number(random_: random.Random, data: bytearray) -> None:
    """Writes a number at a limit of its type."""
    form = random_.choice(["<H", ">H", "<I", ">I"])
    size = struct.calcsize(form)
    if len(data) > size:
        place = min(_place(random_, data), len(data) - size)
        data[place : place + size] = struct.pack(form, random_.choice(NUMBERS) & (256**size - 1))


def _cut(random_: random.Random, data: bytearray) -> None:
    del data[random_.randint(0, len(data)) :]


def _remove(random_: random.Random, data: bytearray) -> None:
    if data:
        place = _place(random_, data)
        del data[place : place + random_.randint(1, 64)]


def _repeat(random_: random.Random, data: bytearray) -> None:
    if data:
        place = _place(random_, data)
        data[place:place] = data[place : place + random_.randint(1, 256)] * random_.choice([1, 2, 50])


def _insert(random_: random.Random, data: bytearray) -> None:
    place = random_.randint(0, len(data))
    data[place:place] = random_.randbytes(random_.randint(1, 64))


def _splice(random_: random.Random, data: bytearray) -> None:
    """Continues with the rest of another file."""
    other = undamaged(random_)
    data[random_.randint(0, len(data)) :] = other[random_.randint(0, len(other)) :]


MUTATIONS = (_flip, _flip, _number, _number, _number, _cut, _remove, _repeat, _insert, _splice)


def _place(random_: random.Random, data: bytearray) -> int:
    """Returns an index, often one in the file's head."""
    return random_.randrange(len(data) if random_.random() < 0.5 else min(len(data), 64))


def _mend_png(data: bytearray) -> None:
    """Corrects the checksums of all chunks, so that their contents are read."""
    place = 8
    while place + 12 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        end = place + 8 + length
        if end + 4 > len(data):
            return
        data[end : end + 4] = zlib.crc32(data[place + 4 : end]).to_bytes(4, "big")
        place = end + 4


async def check(intake: ImageIntake, data: bytes) -> int:
    """Returns the status with which a frontend answers this image: 200 if the request would enter."""
    trace = RequestTrace({"method": "POST", "path": "/", "headers": []})
    try:
        await intake.take([ImagePart("messages[0].content[0]", data_url(data))], trace)
    except RequestError as error:
        return error.info.status if str(error).startswith("messages[0].content[0]: ") else 0
    finally:
        intake.store.release(trace.images)
    return 200


async def check_all(seeds: range, directory: Path) -> Counter[int]:
    """Returns the numbers of statuses."""
    intake = ImageIntake(vision_config(max_image_pixels=4), directory, 1, lambda _: None)
    try:
        found = Counter([await check(intake, mutated(seed)) for seed in seeds])
        assert intake.store.num_bytes == 0
        return found
    finally:
        intake.close()


def main() -> None:
    number, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    begun_s, process = time.monotonic(), psutil.Process()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(check_all(range(first, first + number), Path(directory)))
    memory_mb = process.memory_info().rss >> 20
    print(f"{dict(found)} in {time.monotonic() - begun_s:.1f} s, {memory_mb} MiB")


if __name__ == "__main__":
    main()
