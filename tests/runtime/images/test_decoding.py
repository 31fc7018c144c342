"""Files become upright RGB pixels, or an error; a hostile one ends only the child."""

import io
import os
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from runtime.images.decoding import ImageDecoder
from runtime.images.errors import ImageError
from runtime.images.layout import Layout
from runtime.images.pixels import FORMATS, Pixels, decode

MAX_PIXELS = 1_000_000
RANDOM = np.random.default_rng(5)
PIXELS = RANDOM.integers(0, 256, (13, 17, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def decoder() -> Iterator[ImageDecoder]:
    decoder = ImageDecoder()
    yield decoder
    decoder.close()


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def decoded(data: bytes) -> Pixels:
    return np.asarray(decode(io.BytesIO(data), MAX_PIXELS))


def in_file(directory: Path, data: bytes) -> Path:
    path = directory / "image"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_found_by_its_content(decoder: ImageDecoder, tmp_path: Path, form: str):
    data = saved(Image.fromarray(PIXELS), form)
    path = in_file(tmp_path, data)
    assert decoder.size(path, MAX_PIXELS) == (17, 13)
    [view] = decoder.views(path, Layout((), "bicubic", 1), MAX_PIXELS)
    assert np.array_equal(view, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    if form in ("PNG", "BMP", "TIFF"):
        assert np.array_equal(view, PIXELS)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_by_their_exif_orientation(form: str, orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(Image.fromarray(PIXELS), form, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert expected.size == ((17, 13) if orientation < 5 else (13, 17))
    assert np.array_equal(decoded(data), np.asarray(expected))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_images_are_put_on_white(mode: str):
    image = Image.fromarray(PIXELS)
    image.putalpha(0)
    if mode == "P":
        image = Image.new("P", (17, 13), 3)
        image.putpalette([0, 0, 0] * 4)
        image.info["transparency"] = 3
    assert (decoded(saved(image.convert(mode), "PNG")) == 255).all()


def test_half_transparent_pixels_are_blended_and_opaque_ones_kept():
    alpha = RANDOM.integers(0, 256, (13, 17), dtype=np.uint8)
    alpha[0] = 255
    image = np.concatenate([PIXELS, alpha[..., None]], axis=2)
    exact = PIXELS * (alpha[..., None] / 255) + 255 - alpha[..., None]
    pixels = decoded(saved(Image.fromarray(image), "PNG"))
    assert np.abs(pixels - exact).max() <= 1
    assert np.array_equal(pixels[0], PIXELS[0])


def test_modes_without_transparency_are_converted_as_pillow_does():
    for mode in ("1", "L", "P", "CMYK", "YCbCr"):
        image = Image.fromarray(PIXELS).convert(mode)
        data = saved(image, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
        assert np.array_equal(decoded(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))), mode
    data = saved(Image.fromarray(PIXELS).convert("CMYK"), "JPEG")
    assert np.array_equal(decoded(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_sixteen_bits_are_scaled_to_eight():
    deep = np.array([[0, 256, 32768, 65535]], np.uint16)
    for form in ("PNG", "TIFF"):
        assert decoded(saved(Image.fromarray(deep), form))[0, :, 0].tolist() == [0, 1, 128, 255]
    big_endian = Image.frombytes("I;16B", (4, 1), deep.astype(">u2").tobytes())
    assert decoded(saved(big_endian, "TIFF"))[0, :, 1].tolist() == [0, 1, 128, 255]
    floats = Image.fromarray(np.array([[0.0, 0.5, 1.0, 9.0, np.nan]], np.float32))
    assert decoded(saved(floats, "TIFF"))[0, :, 2].tolist() == [0, 128, 255, 255, 0]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_used(form: str):
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "blue", "green")]
    data = saved(frames[0], form, save_all=True, append_images=frames[1:], lossless=True)
    Image.open(io.BytesIO(data)).seek(2)  # there are three
    assert (decoded(data) == [255, 0, 0]).all() or (form == "WEBP" and (decoded(data)[0, 0] > [250, -1, -1]).all())


@pytest.mark.parametrize("form", FORMATS)
def test_cut_files_are_refused(decoder: ImageDecoder, tmp_path: Path, form: str):
    large = RANDOM.integers(0, 256, (90, 90, 3), dtype=np.uint8)
    data = saved(Image.fromarray(large), form)
    for length in (0, 3, 20, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(ImageError, match=r"cut off or damaged|not an image of a known format") as raised:
            decoder.size(in_file(tmp_path, data[:length]), MAX_PIXELS)
        assert raised.value.status == 400


def test_other_files_are_refused(decoder: ImageDecoder, tmp_path: Path):
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"
    for data in (b"hello", b"<svg></svg>", b"%PDF-1.7", postscript, saved(Image.fromarray(PIXELS), "ICO")):
        with pytest.raises(ImageError, match="not an image of a known format"):
            decoder.size(in_file(tmp_path, data), MAX_PIXELS)
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        decoder.size(tmp_path / "missing", MAX_PIXELS)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_the_size_is_checked_before_pixels_are_decoded(decoder: ImageDecoder, tmp_path: Path):
    head = struct.pack(">IIBBBBB", 20000, 20000, 1, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", b"no pixels") + png_chunk(b"IEND", b"")
    with pytest.raises(ImageError, match=r"20000 x 20000 pixels, more than the limit of 1,000,000"):
        decoder.size(in_file(tmp_path, bomb), MAX_PIXELS)
    with pytest.raises(ImageError, match="damaged"):
        decoder.views(tmp_path / "image", Layout((), "bicubic", 1), 20000 * 20000)


def test_an_image_may_not_take_more_memory_than_its_limit(decoder: ImageDecoder, tmp_path: Path):
    path = in_file(tmp_path, saved(Image.fromarray(PIXELS), "PNG"))
    pid = decoder._child.pid  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ImageError, match="too much memory"):
        decoder.views(path, Layout(((4, 4),), "bicubic", 1, tile=(2, 2), overview=(40000, 40000)), MAX_PIXELS)
    assert decoder._child.pid == pid  # pyright: ignore[reportPrivateUsage]


def test_a_slow_image_ends_only_the_child(decoder: ImageDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = in_file(tmp_path, saved(Image.fromarray(PIXELS), "PNG"))
    slow = Layout(((1000, 1000), (900, 900)) * 200, "lanczos", 1)
    monkeypatch.setattr("runtime.images.decoding.MIN_CPU_S", 0.1)
    with pytest.raises(ImageError, match=r"not decoded within 0.6 s of CPU time"):
        decoder.views(path, slow, MAX_PIXELS)
    monkeypatch.undo()
    assert decoder.size(path, MAX_PIXELS) == (17, 13)


def test_a_killed_child_is_replaced(decoder: ImageDecoder, tmp_path: Path):
    path = in_file(tmp_path, saved(Image.fromarray(PIXELS), "PNG"))
    os.kill(decoder._child.pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
    assert decoder.size(path, MAX_PIXELS) == (17, 13)


def test_damaged_files_never_end_the_child(decoder: ImageDecoder, tmp_path: Path):
    pid = decoder._child.pid  # pyright: ignore[reportPrivateUsage]
    num_refused = 0
    for form in FORMATS:
        data = saved(Image.fromarray(PIXELS), form)
        for _ in range(40):
            damaged = bytearray(data)
            for place in RANDOM.integers(0, len(data), 6):
                damaged[place] = RANDOM.integers(0, 256)
            try:
                width, height = decoder.size(in_file(tmp_path, bytes(damaged)), MAX_PIXELS)
                assert 0 < width * height <= MAX_PIXELS
            except ImageError as error:
                num_refused += error.status == 400
    assert num_refused > 40
    assert decoder._child.pid == pid  # pyright: ignore[reportPrivateUsage]
