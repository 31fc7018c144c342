"""Marks in incomplete text."""

import pytest
import regex

from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.parsing.harmony import CALLS
from frontend.parsing.marks import Mark

MARKS = [
    Mark(["<think>"]),
    Mark(["「", "<<"]),
    Mark(pattern=r"\s*(?=\{)"),
    Mark(pattern=CALLS[0]),
    Mark(pattern=r"(?<=a)b"),
    Mark(pattern=r"\w{3}!"),
    Mark(pattern=r"(?i)end"),
]
TEXTS = [
    "",
    "plain",
    "a <think> b",
    "x「y",
    "<",
    "  {",
    "ab",
    "é中中!",
    "the END",
    "<|channel|>commentary to=functions.f<|message|>",
]


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark._pattern.pattern)
def test_the_quick_look_misses_no_mark(mark: Mark):
    pattern = regex.compile(mark._pattern.pattern, regex.DOTALL)  # pyright: ignore[reportPrivateUsage]
    for text in TEXTS:
        for start in range(len(text) + 1):
            for is_complete in (True, False):
                found = mark.find(text, start, is_complete=is_complete)
                match = pattern.search(text, start, partial=not is_complete)
                expected = None if match is None or match.start() == match.end() == len(text) else match.span()
                got = None if found is None or found.start == found.end == len(text) else (found.start, found.end)
                assert got == expected, (text, start, is_complete)


def test_what_may_still_grow_is_not_certain():
    mark = Mark(["<a", "<ab"])
    assert [mark.find(text, 0, is_complete=False).is_certain for text in ("<", "<a", "<ab", "<a ")] == [  # pyright: ignore
        False,
        False,
        False,
        True,
    ]
    found = mark.find("x<a", 0, is_complete=True)
    assert found is not None
    assert (found.start, found.end, found.is_certain) == (1, 3, True)


def test_plain_words_are_passed_at_a_look():
    fields = [field for entry in (*TOOL_FORMATS.values(), *REASONING_FORMATS.values()) for field in entry.fields]
    for field in fields:
        mark = Mark([field["open"]] if "open" in field else [], field.get("open_pattern", ""))
        only_here = field.get("starts_content", False)
        assert mark.find("The quick fox, 中文 éà", 0, is_complete=False, only_here=only_here) is None, field
