"""The labels of options: one letter or, for more than 26 options, a letter and a digit.

Each letter and each digit is one token in nearly every vocabulary, a letter with a digit is not. So a label of two
is read in two rows: the letters after the prompt, and the digits after the prompt and a letter.
"""

from collections.abc import Sequence
from string import ascii_uppercase, digits
from typing import NamedTuple

from extras.embeddings.heads import softmax

YES_NO = ("Yes", "No")


class LabelRow(NamedTuple):
    """One row: the text of the answer before its next token, and the texts which that token may be."""

    begun: str
    labels: tuple[str, ...]


def names_of(num_options: int) -> list[str]:
    """Returns the label of each option."""
    if num_options <= len(ascii_uppercase):
        return list(ascii_uppercase[:num_options])
    return [ascii_uppercase[i // len(digits)] + digits[i % len(digits)] for i in range(num_options)]


def rows_of(num_options: int) -> list[LabelRow]:
    """Returns the rows that give the probability of each option; without options, of Yes and No."""
    names = names_of(num_options)
    if not names or len(names[0]) == 1:
        return [LabelRow("", tuple(names) or YES_NO)]
    letters = tuple(dict.fromkeys(name[0] for name in names))
    of_letters = [LabelRow(letter, tuple(name[1] for name in names if name[0] == letter)) for letter in letters]
    return [LabelRow("", letters), *of_letters]


def probabilities_of(logprobs: Sequence[Sequence[float]]) -> list[float]:
    """Returns the probability of each option, of the logprobs of `rows_of`. Their sum is 1."""
    first, *others = map(softmax, logprobs)
    return [p * share for p, shares in zip(first, others, strict=True) for share in shares] if others else first
