"""The text in the arguments of a custom tool's call, however it is written and split."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.parsing.custom_input import InputReader


def read(pieces: list[str]) -> str:
    reader = InputReader()
    return "".join(map(reader.feed, pieces))


@given(st.text(st.characters(codec="utf-8")), st.booleans(), st.lists(st.integers(0, 80)))
def test_it_is_the_string_in_the_arguments_however_they_are_cut(text: str, ascii_only: bool, cuts: list[int]):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    assert read([arguments[a:b] for a, b in itertools.pairwise(places)]) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("*** Begin Patch\n", "*** Begin Patch\n"),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("{}", "{}"),
        ('{"input": 5}', '{"input": 5}'),
        (r'{"input": "\d+ \u00zz"}', r"\d+ \u00zz"),
        (r'{"input": "\ud83d!"}', "?!"),
        ('{"input": "a\nb", "more": "c"}', "a\nb"),
        (r'{"input": "cut \u00', "cut "),
    ],
)
def test_what_models_write_instead(arguments: str, text: str):
    assert read([arguments]) == read(list(arguments)) == text


def test_a_piece_comes_as_soon_as_it_is_certain():
    reader = InputReader()
    assert [reader.feed(piece) for piece in ('{"inp', 'ut": "*** B', "egin\\", 'n+a\\"', '"}')] == [
        *("", "*** B", "egin", '\n+a"', "")
    ]
