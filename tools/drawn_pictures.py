"""Draws pictures of coloured shapes, digits and words, and asks questions about them whose answers are known.

    python -m tools.drawn_pictures FILE [SEED]

A picture has four places, each with one thing or nothing. Large pictures are noisy: the noise is gone only after a
filter that averages all pixels.
"""

import random
import sys
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
WORDS = ("cat", "dog", "sun", "map", "bus", "key", "fox", "hat")
SIDE = 2
PLACES = ("northwest", "northeast", "southwest", "southeast")
"""The names of the cells, line by line."""
NOTHING = "nothing"

ASKED = (
    ("What is at the {}?", "What do you see at the {}?"),
    ("What is {}?", "Which thing is {}?"),
    ("What color is the {}?", "Where is the {}?"),
)
"""How to ask about a place, a colour and a name."""
DESCRIBE = "Describe the picture."


class Thing(NamedTuple):
    color: str
    name: str

    def __str__(self) -> str:
        return f"{self.color} {self.name}"


class Question(NamedTuple):
    text: str
    answer: str


@dataclass(frozen=True)
class Scene:
    """The thing in each place of a picture, or `None`. No two have the same colour or name."""

    things: tuple[Thing | None, ...]

    def answer(self, place: int, first: int = 0) -> str:
        """Returns a place and the thing there, as place (0), colour (1) and name (2), in turns from the `first`."""
        words = [PLACES[place], *(self.things[place] or [NOTHING])]
        return " ".join(words[first:] + words[:first])


def draw_scene(rng: random.Random) -> Scene:
    colors = rng.sample(list(COLORS), len(PLACES))
    names: list[str] = []
    while len(names) < len(PLACES):
        name = rng.choice(rng.choice((SHAPES, DIGITS, WORDS)))
        if name not in names:
            names.append(name)
    empty = rng.sample(range(len(PLACES)), rng.choice((0, 0, 1, 2)))
    things = map(Thing, colors, names)
    return Scene(tuple(None if place in empty else thing for place, thing in enumerate(things)))


def ask(rng: random.Random, scene: Scene) -> Question:
    """Returns a question about a place, or about a thing by colour or name. The answer begins with what it names."""
    place = rng.randrange(len(PLACES))
    thing = scene.things[place]
    named = (PLACES[place], *(thing or ()))
    first = rng.randrange(len(named))
    return Question(rng.choice(ASKED[first]).format(named[first]), scene.answer(place, first))


def describe(rng: random.Random, scene: Scene) -> Question:
    """Returns the request for all places, of which the first comes first and the others in any order."""
    places = [0, *rng.sample(range(1, len(PLACES)), len(PLACES) - 1)]
    return Question(DESCRIBE, ", ".join(map(scene.answer, places)))


class Exam(NamedTuple):
    """The messages of a chat, whose pictures are parts of type `image`, and the answer that is right."""

    messages: list[dict[str, object]]
    pictures: list[Image.Image]
    answer: str


def draw_exam(rng: random.Random, num_pictures: int) -> Exam:
    """Returns a question about the last of these pictures, after an answered one about each before it."""
    scenes = [draw_scene(rng) for _ in range(num_pictures)]
    asked = [ask(rng, scene) for scene in scenes]
    messages: list[dict[str, object]] = []
    for question in asked:
        parts = [{"type": "image"}, {"type": "text", "text": question.text}]
        messages += [{"role": "user", "content": parts}, {"role": "assistant", "content": question.answer}]
    return Exam(messages[:-1], [draw(rng, scene) for scene in scenes], asked[-1].answer)


def draw(rng: random.Random, scene: Scene) -> Image.Image:
    """Returns the picture of a scene, with cells of 40 to 170 pixels."""
    cell = rng.randrange(40, 170)
    width, height = (round(SIDE * cell * rng.uniform(0.9, 1)) for _ in range(2))
    picture = Image.new("RGB", (width, height), tuple(rng.randrange(228, 256) for _ in range(3)))
    canvas = ImageDraw.Draw(picture)
    cell_width, cell_height = width / SIDE, height / SIDE
    for index, thing in enumerate(scene.things):
        if thing is not None:
            line, column = divmod(index, SIDE)
            radius = min(cell_width, cell_height) * rng.uniform(0.34, 0.44)
            x = (column + 0.5) * cell_width + rng.uniform(-0.7, 0.7) * (cell_width / 2 - radius)
            y = (line + 0.5) * cell_height + rng.uniform(-0.7, 0.7) * (cell_height / 2 - radius)
            color = tuple(min(255, max(0, part + rng.randrange(-12, 13))) for part in COLORS[thing.color])
            _draw_thing(canvas, thing.name, (x, y), radius, color)
    return _add_noise(rng, picture, max(4.0, 0.5 * max(width, height) - 40))


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


def main(file: str, seed: str = "1") -> None:
    """Draws a picture and prints what it shows."""
    rng = random.Random(int(seed))
    scene = draw_scene(rng)
    draw(rng, scene).save(file)
    print(describe(rng, scene).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
