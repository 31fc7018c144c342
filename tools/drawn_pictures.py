"""Draws pictures of coloured shapes, digits and words, and asks questions about them whose answers are known.

A picture has one or two lines and columns of cells, each with one thing or nothing. Large pictures are noisy: the
noise is gone only after a filter that averages all pixels.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLORS = {
    "red": (215, 30, 35),
    "green": (30, 160, 60),
    "blue": (40, 60, 220),
    "yellow": (240, 215, 20),
    "orange": (240, 125, 20),
    "black": (15, 15, 15),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring")
DIGITS = tuple("0123456789")
WORDS = (
    *("cat", "dog", "sun", "map", "bus", "key", "fox", "jam"),
    *("hat", "owl", "pig", "egg", "cup", "box", "web", "zip"),
)
COUNTS = ("zero", "one", "two", "three", "four")
PLACES = {
    (2, 2): ("top left", "top right", "bottom left", "bottom right"),
    (1, 2): ("left", "right"),
    (2, 1): ("top", "bottom"),
}
"""The names of the cells, line by line, by the numbers of lines and columns."""
NOTHING = "nothing"

ASKED = {
    "what": ("What is at the {}?", "What do you see at the {}?"),
    "color": ("What color is the {}?", "Which color is the {}?"),
    "where": ("Where is the {}?", "At which place is the {}?"),
    "name": ("What is {}?", "Which thing is {}?"),
    "count": ("How many things are there?", "How many things do you see?"),
}
ASKED_OF_SEVERAL = "What is at the {} of picture {}?"


class Thing(NamedTuple):
    color: str
    name: str

    def __str__(self) -> str:
        return f"{self.color} {self.name}"


class Question(NamedTuple):
    text: str
    answer: str


@dataclass(frozen=True)
class Level:
    """What pictures may contain, from easy to hard."""

    names: tuple[str, ...] = SHAPES
    kinds: tuple[str, ...] = tuple(ASKED)
    noise: float = 1.0


LEVELS = (
    Level(("square",), ("what",), noise=0.0),
    Level(kinds=("what", "color"), noise=0.0),
    Level(SHAPES + DIGITS, noise=0.5),
    Level(SHAPES + DIGITS + WORDS),
)


@dataclass(frozen=True)
class Scene:
    """The things of a picture by their place."""

    lines: int
    columns: int
    things: tuple[Thing | None, ...]

    @property
    def places(self) -> tuple[str, ...]:
        return PLACES[self.lines, self.columns]

    def contents(self) -> dict[str, str]:
        return {place: str(thing or NOTHING) for place, thing in zip(self.places, self.things, strict=True)}

    def questions(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yields what each possible question of a kind asks for, and its answer."""
        found = [(place, thing) for place, thing in zip(self.places, self.things, strict=True) if thing]
        colors, names = [thing.color for _, thing in found], [thing.name for _, thing in found]
        if kind == "what":
            yield from self.contents().items()
        elif kind == "count":
            yield "", COUNTS[len(found)]
        for place, thing in found:
            if kind == "where" and names.count(thing.name) == 1:
                yield thing.name, place
            elif kind == "color" and names.count(thing.name) == 1:
                yield thing.name, thing.color
            elif kind == "name" and colors.count(thing.color) == 1:
                yield thing.color, thing.name


def draw_scene(rng: random.Random, level: Level = LEVELS[-1]) -> Scene:
    lines, columns = rng.choice(((2, 2), (2, 2), (1, 2), (2, 1)))
    things = [Thing(rng.choice(list(COLORS)), _draw_name(rng, level)) for _ in range(lines * columns)]
    num_cells = len(things)
    empty = rng.sample(range(num_cells), rng.choice((0, 0, 1, num_cells - 1, num_cells // 2)))
    return Scene(lines, columns, tuple(None if place in empty else thing for place, thing in enumerate(things)))


def _draw_name(rng: random.Random, level: Level) -> str:
    groups = [[name for name in group if name in level.names] for group in (SHAPES, DIGITS, WORDS)]
    return rng.choice(rng.choice([group for group in groups if group]))


def ask(rng: random.Random, scene: Scene, level: Level = LEVELS[-1]) -> Question:
    while True:
        kind = rng.choice(level.kinds)
        asked = list(scene.questions(kind))
        if asked:
            about, answer = rng.choice(asked)
            return Question(rng.choice(ASKED[kind]).format(about), answer)


def ask_of_several(rng: random.Random, scenes: list[Scene]) -> Question:
    """Asks about one of several pictures, which are numbered from 1."""
    number = rng.randrange(len(scenes))
    place, answer = rng.choice(list(scenes[number].contents().items()))
    return Question(ASKED_OF_SEVERAL.format(place, number + 1), answer)


def draw(rng: random.Random, scene: Scene, level: Level = LEVELS[-1]) -> Image.Image:
    """Returns the picture of a scene, with cells of 40 to 170 pixels."""
    cell = rng.randrange(40, 170)
    width = round(cell * scene.columns * (1 if scene.columns > scene.lines else rng.uniform(0.88, 1)))
    height = round(cell * scene.lines * (1 if scene.lines > scene.columns else rng.uniform(0.88, 1)))
    paper = tuple(rng.randrange(228, 256) for _ in range(3))
    picture = Image.new("RGB", (width, height), paper)
    canvas = ImageDraw.Draw(picture)
    cell_width, cell_height = width / scene.columns, height / scene.lines
    for index, thing in enumerate(scene.things):
        if thing is not None:
            line, column = divmod(index, scene.columns)
            radius = min(cell_width, cell_height) * rng.uniform(0.3, 0.44)
            x = (column + 0.5) * cell_width + rng.uniform(-1, 1) * (cell_width / 2 - radius)
            y = (line + 0.5) * cell_height + rng.uniform(-1, 1) * (cell_height / 2 - radius)
            color = tuple(min(255, max(0, part + rng.randrange(-14, 15))) for part in COLORS[thing.color])
            _draw_thing(canvas, thing.name, (x, y), radius, color)
    return _add_noise(rng, picture, level.noise * max(4.0, 0.6 * max(width, height) - 40))


def _add_noise(rng: random.Random, picture: Image.Image, deviation: float) -> Image.Image:
    noise = np.random.default_rng(rng.randrange(2**32)).normal(0, deviation, (picture.height, picture.width, 1))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


def _draw_thing(
    canvas: ImageDraw.ImageDraw, name: str, center: tuple[float, float], radius: float, color: tuple[int, ...]
) -> None:
    x, y = center
    box = (x - radius, y - radius, x + radius, y + radius)
    third = radius / 3
    if name == "circle":
        canvas.ellipse(box, fill=color)
    elif name == "ring":
        canvas.ellipse(box, outline=color, width=max(2, round(radius / 3.5)))
    elif name == "square":
        canvas.rectangle(box, fill=color)
    elif name == "triangle":
        canvas.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=color)
    elif name == "cross":
        canvas.rectangle((x - third, y - radius, x + third, y + radius), fill=color)
        canvas.rectangle((x - radius, y - third, x + radius, y + third), fill=color)
    else:
        size = radius * (2.3 if name in DIGITS else 1.25)
        font, stroke = _font(max(8, round(size))), round(size / 20)
        canvas.text((x, y), name, font=font, fill=color, anchor="mm", stroke_width=stroke, stroke_fill=color)


@lru_cache(maxsize=512)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow lacks FreeType"
    return font
