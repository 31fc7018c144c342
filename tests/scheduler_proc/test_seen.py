"""A trained model answers questions about drawn pictures, and each planted mistake makes it fail.

The pictures come as files of cameras do: rotated, with the orientation in their EXIF data.
"""

import io
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from messages.ring.images import ImageInput
from runtime.images import pixels
from runtime.images.layout import Layout
from scheduler_proc.computing.model.span_rows import SpanRows
from scheduler_proc.computing.vision import view_tower
from scheduler_proc.computing.vision.families.idefics3 import Idefics3Tower
from scheduler_proc.computing.vision.view_tower import ViewTower
from scheduler_proc.deciding.pages import running_request
from tests.scheduler_proc.image_server import ImageServer
from tokenizer_proc import message_forms
from tools.drawn_pictures import Exam, draw_exam

MODEL = Path(__file__).resolve().parents[2] / "assets" / "shapes-idefics3"
NUM_EXAMS = 60
LEAST_SHARE = 0.95
MAX_TOKENS = 8
SIDEWAYS = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
"""How a picture is rotated for each orientation in EXIF data."""
ORIENTATION = 0x0112


class Decoder:
    """Decodes in this process, where mistakes can be planted."""

    def views(self, path: Path, layout: Layout, max_pixels: int) -> list[pixels.Pixels]:
        with path.open("rb") as file:
            return pixels.make_views(pixels.decode(file, max_pixels), layout)

    def close(self) -> None:
        pass


class SeenServer(ImageServer):
    """A server of the trained model, which is examined."""

    def __init__(self, folder: Path):
        self._folder, self._numbers = folder, count()
        self._inputs: dict[int, ImageInput] = {}
        """By the ids of pictures, which the tests keep."""
        super().__init__(Path(shutil.copytree(MODEL, folder / "model")), folder, block_size=4, num_pages=4000)
        self._encode.close()
        self._encode._decoder = Decoder()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        self._texts = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    def start(self) -> None:
        """Starts a scheduler without a cache of encodings."""
        assert self._runner.span_rows is not None
        self._rows = self._folder / f"rows {next(self._numbers)}"
        self._rows.touch()
        self._runner.span_rows.open_file(self._rows, 1 << 20)
        super().start()

    def _input(self, image: Image.Image, index: int) -> ImageInput:
        if id(image) not in self._inputs:
            self._inputs[id(image)] = self._store(image)
        return self._inputs[id(image)]

    def _store(self, image: Image.Image) -> ImageInput:
        file, exif = io.BytesIO(), Image.Exif()
        orientation = list(SIDEWAYS)[sum(image.size) % len(SIDEWAYS)]
        transpose = SIDEWAYS[orientation]
        exif[ORIENTATION] = orientation
        (image if transpose is None else image.transpose(transpose)).save(file, "PNG", exif=exif)
        digest = blake2b(file.getvalue(), digest_size=16).digest()
        (self.images / digest.hex()).write_bytes(file.getvalue())
        return ImageInput(digest, *image.size)

    def share_right(self, exams: Sequence[Exam]) -> float:
        """Returns the share of these questions that a new scheduler answers right."""
        self.start()
        requests = [
            self.user_msg(exam.messages, exam.pictures, allowed_token_ids=b"", ignore_eos=False, max_tokens=MAX_TOKENS)
            for exam in exams
        ]
        answers = map(self._texts.decode, self.run(requests).values())
        return sum(text == exam.answer for text, exam in zip(answers, exams, strict=True)) / len(exams)


@pytest.fixture(scope="module")
def exams() -> list[Exam]:
    """Half of them have two pictures."""
    rng = random.Random(54)
    return [draw_exam(rng, 1 + index % 2) for index in range(NUM_EXAMS)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeenServer]:
    with closing(SeenServer(tmp_path_factory.mktemp("seen"))) as server:
        yield server


def test_pictures_are_seen(server: SeenServer, exams: list[Exam]):
    assert server.share_right(exams) >= LEAST_SHARE


Plant = Callable[[pytest.MonkeyPatch], None]
MISTAKES: dict[str, Plant] = {}


def mistake(plant: Plant) -> Plant:
    MISTAKES[plant.__name__] = plant
    return plant


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replaces a function by `change`, whose first argument is the function."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments: change(real, *arguments))


@mistake
def blue_is_red(patch: pytest.MonkeyPatch) -> None:
    def swap(real: Any, image: Image.Image) -> Image.Image:
        rgb = real(image)
        swapped = Image.merge("RGB", rgb.split()[::-1])
        swapped.info = rgb.info
        return swapped

    wrap(patch, pixels, "_to_rgb", swap)


@mistake
def the_orientation_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pixels.ImageOps, "exif_transpose", lambda image: image)


@mistake
def the_filter_does_not_average(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(pixels.FILTERS, "lanczos", Image.Resampling.NEAREST)


@mistake
def pixels_are_not_normalized(patch: pytest.MonkeyPatch) -> None:
    def without_mean(real: Any, tower: Any, view: Tensor) -> Tensor:
        return real(tower, view) / 2 + 0.5

    wrap(patch, ViewTower, "_patches_of", without_mean)


@mistake
def patches_have_the_next_position(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Idefics3Tower, "_positions", lambda real, *arguments: real(*arguments).roll(1, 0))


@mistake
def lines_are_columns(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, ViewTower, "_patches_of", lambda real, tower, view: real(tower, view.transpose(0, 1)))


@mistake
def patches_of_a_row_begin_one_too_late(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, view_tower, "shuffle_pixels", lambda real, hidden_TE, *others: real(hidden_TE.roll(1, 0), *others))


@mistake
def rows_are_those_of_the_next_place(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, SpanRows, "_part", lambda real, rows, part, placed_T: real(rows, part, placed_T + 1))


@mistake
def images_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpanRows, "overwrite", lambda *_: None)


@mistake
def images_are_swapped(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, message_forms, "take_numbers", lambda real, messages: real(messages)[::-1])


@mistake
def all_images_have_one_encoding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ImageInput, "encoding_digest", lambda _: bytes(16))


@mistake
def pages_are_found_by_ids_alone(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, running_request, "page_key", lambda real, ids, _spans, *range_: real(ids, (), *range_))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(server: SeenServer, exams: list[Exam], monkeypatch: pytest.MonkeyPatch, name: str):
    MISTAKES[name](monkeypatch)
    assert server.share_right(exams) < LEAST_SHARE
