"""The questions of `/v1/decisions`: how the model is asked, and the answer for the probabilities of the options."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from extras.decisions.input_text import Part, text_of
from frontend.api.parameters.sampling import NonEmpty

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
WHERE = "questions.instructions"

Name = Annotated[str, Meta(max_length=256)]
Instructions = NonEmpty | Annotated[list[Part], Meta(min_length=1)]


class Option(msgspec.Struct, frozen=True):
    """A string and a boolean of the same text are different values."""

    value: NonEmpty | bool
    description: str | None = None

    @property
    def text(self) -> str:
        text = self.value if isinstance(self.value, str) else str(self.value).lower()
        return f"{text}: {self.description}" if self.description else text


class Level(msgspec.Struct, frozen=True):
    label: NonEmpty
    description: str | None = None

    @property
    def text(self) -> str:
        return f"{self.label}: {self.description}" if self.description else self.label


class PredicateAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="predicate"):
    name: str | None
    probability: float


class OptionProbability(msgspec.Struct, frozen=True):
    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="choice"):
    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[OptionProbability]


class LevelProbability(msgspec.Struct, frozen=True):
    """`value` counts the levels from 0."""

    label: str
    value: int
    probability: float


class ScoreAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="score"):
    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelProbability]


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class Predicate(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    instructions: Instructions
    name: Name | None = None

    @property
    def options(self) -> list[str]:
        """The texts of the options that have labels; a predicate is answered with Yes or No."""
        return []

    @property
    def text(self) -> str:
        return f"Is this true of the input? {text_of(self.instructions, WHERE)}\n\nAnswer Yes or No."

    def answer(self, probabilities: Sequence[float]) -> PredicateAnswer:
        return PredicateAnswer(self.name, probabilities[0])


class ChoiceQuestion(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    instructions: Instructions
    choices: Annotated[list[Option], Meta(min_length=2, max_length=MAX_OPTIONS)]
    name: Name | None = None

    def __post_init__(self) -> None:
        if len({(type(option.value), option.value) for option in self.choices}) < len(self.choices):
            raise ValueError("the values of choices must differ")

    @property
    def options(self) -> list[str]:
        return [option.text for option in self.choices]

    @property
    def text(self) -> str:
        return f"{text_of(self.instructions, WHERE)}\n\nWhich of these options fits best?"

    def answer(self, probabilities: Sequence[float]) -> ChoiceAnswer:
        """The confidence is 0 if all values are equally likely, 1 if one is certain."""
        best, chance = _index_of_largest(probabilities), 1 / len(probabilities)
        confidence = max(0.0, (probabilities[best] - chance) / (1 - chance))
        shown = [OptionProbability(each.value, p) for each, p in zip(self.choices, probabilities, strict=True)]
        return ChoiceAnswer(self.name, self.choices[best].value, confidence, shown)


class ScoreQuestion(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    instructions: Instructions
    levels: Annotated[list[Level], Meta(min_length=2, max_length=MAX_OPTIONS)]
    name: Name | None = None

    @property
    def options(self) -> list[str]:
        return [level.text for level in self.levels]

    @property
    def text(self) -> str:
        return f"{text_of(self.instructions, WHERE)}\n\nWhich of these levels, lowest first, fits best?"

    def answer(self, probabilities: Sequence[float]) -> ScoreAnswer:
        """The score is the mean level. The confidence is 1 if one level is certain.

        It falls with the mean distance from the likeliest level, to 0 at the distance of equally likely levels from
        their middle.
        """
        best, middle = _index_of_largest(probabilities), (len(probabilities) - 1) / 2
        distance = sum(p * abs(level - best) for level, p in enumerate(probabilities))
        chance = sum(abs(level - middle) for level in range(len(probabilities))) / len(probabilities)
        score = sum(level * p for level, p in enumerate(probabilities))
        shown = [
            LevelProbability(each.label, value, p)
            for value, (each, p) in enumerate(zip(self.levels, probabilities, strict=True))
        ]
        return ScoreAnswer(self.name, score, max(0.0, 1 - distance / chance), shown)


Question = Predicate | ChoiceQuestion | ScoreQuestion


def _index_of_largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)
