"""The work of parsing grows with the length of an answer, not with its square, in every format and token by token."""

import contextlib
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from frontend.parsing import marks
from frontend.parsing.call_scanner import CallScanner
from frontend.parsing.custom_input import InputReader
from frontend.parsing.deltas import Deltas
from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.parsing.loose_json import LooseReader
from frontend.parsing.marks import MarkMatch
from frontend.parsing.model_format import choose_format
from frontend.parsing.parser import ResponseParser
from frontend.parsing.regions import Format
from tests.frontend.parsing.recorded import TOOLS

NUM_CHARS = 400
TOKEN_CHARS = 5
MAX_GROWTH = 4.6
"""Times the work of a text that is four times as long."""
REASONING = {
    **{name: name for name in REASONING_FORMATS if name in TOOL_FORMATS},
    "openai": "openai_gptoss",
    "minimax": "apriel",
}


class Work:
    """Counts the calls of functions, and the characters that patterns search and scanners get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.num = 0
        find, feed = marks.Mark.find, CallScanner.feed

        def counted_find(mark: marks.Mark, text: str, start: int, **how: bool) -> MarkMatch | None:
            self.num += len(text) - start
            return find(mark, text, start, **how)

        def counted_feed(scanner: CallScanner, text: str) -> Any:
            self.num += len(text)
            return feed(scanner, text)

        monkeypatch.setattr(marks.Mark, "find", counted_find)
        monkeypatch.setattr(CallScanner, "feed", counted_feed)

    def of(self, act: Callable[[], object]) -> int:
        self.num = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            self.num += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            act()
        finally:
            sys.setprofile(None)
        return self.num


def parse(format: Format, text: str, *, is_streamed: bool = True, is_cut: bool = False) -> None:
    parser = ResponseParser(format, TOOLS, deltas=Deltas(is_streamed=is_streamed))
    for start in range(0, len(text), TOKEN_CHARS):
        parser.feed(text[start : start + TOKEN_CHARS])
    parser.finish(is_cut=is_cut)


def answers(name: str) -> dict[str, tuple[str, str]]:
    """Returns the beginnings of answers, and the text that is repeated after them."""
    forced = TOOL_FORMATS[name].forced
    thought = REASONING_FORMATS[REASONING.get(name, "qwen3")].thought
    assert forced is not None
    assert thought is not None
    begin = forced.begin.replace("{name}", "now")
    tag = forced.tag[0].replace("{key}", "a") if forced.tag else ""
    return {
        "words": ("", "The cat sat. "),
        "thought": (thought.begin, "The cat sat. "),
        "spaces": ("", " "),
        "half marks": ("", "<"),
        "marks": ("", begin or '{"name"'),
        "marks in a thought": (thought.begin, begin or '{"name"'),
        "ends of thoughts": ("", thought.end),
        "fences": ("", "```json\n"),
        "names": ("", '{"name": '),
        "brackets": ("", "[{"),
        "brackets in a call": (begin, '{"a":['),
        "a string": (begin + '{"a": "', "ab c "),
        "escapes": (begin + '{"a": "', "\\\\"),
        "lines of an argument": (begin + tag, "\n"),
        "an argument": (begin + tag, "word "),
        "arguments": (begin, tag + "1" + (forced.tag[1] if forced.tag else ",")),
        "spaces in a call": (begin, " "),
        "a call in a thought": (thought.begin + begin + tag, "word "),
        "responses": ("", "</think> <response> "),
    }


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_the_work_is_linear(name: str, monkeypatch: pytest.MonkeyPatch):
    format = choose_format(name, REASONING.get(name, "qwen3"), "").with_tools
    assert format is not None
    work = Work(monkeypatch)
    for kind, (begin, unit) in answers(name).items():
        for is_streamed in (True, False) if "call" in kind else (True,):
            short, long = (begin + unit * (num // len(unit)) for num in (NUM_CHARS, 4 * NUM_CHARS))
            few = work.of(lambda text=short, how=is_streamed: parse(format, text, is_streamed=how))
            many = work.of(lambda text=long, how=is_streamed: parse(format, text, is_streamed=how))
            assert many <= MAX_GROWTH * few, (kind, is_streamed, few, many)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "granite", "gemma4", "deepseek_v3"])
def test_text_is_not_copied_with_each_token(name: str):
    """A copy is one call however long the text is, so it takes processor time to see it."""
    format = choose_format(name, REASONING.get(name, "qwen3"), "").with_tools
    assert format is not None

    def seconds(text: str) -> float:
        began_s = time.thread_time()
        parse(format, text, is_streamed=False)
        return time.thread_time() - began_s

    for kind in ("spaces", "a string", "an argument", "a call in a thought"):
        begin, unit = answers(name)[kind]
        short, long = (begin + unit * (num // len(unit)) for num in (6_250, 100_000))
        growths: list[float] = []
        while len(growths) < 5 and min(growths, default=100) >= 25:  # other programs may have been in the way
            growths.append(seconds(long) / min(seconds(short) for _ in range(2)))
        assert min(growths) < 25, (kind, growths)


def test_the_input_of_a_custom_tool(monkeypatch: pytest.MonkeyPatch):
    def read(text: str) -> None:
        reader = InputReader()
        for start in range(0, len(text), TOKEN_CHARS):
            reader.feed(text[start : start + TOKEN_CHARS])
            assert len(reader._waiting) <= 600  # pyright: ignore[reportPrivateUsage]

    for begin, unit in (("", " "), ('{"input": "', "\\\\"), ('{"input": "', "ab"), ('{"other": "', "ab"), ("{", "\n")):
        read(begin + unit * 10_000)


@pytest.mark.parametrize("unit", ['a:<|"|>b,', 'a:<|"|>b<|"|>,', "a:b c,", "a:[", "a:{", "a:1,", '<|"|>', "a:}", "  "])
@pytest.mark.parametrize("is_cut", [False, True])
def test_loose_json(unit: str, is_cut: bool, monkeypatch: pytest.MonkeyPatch):
    def read(text: str) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            LooseReader(text, [['<|"|>', '<|"|>']], is_cut=is_cut)

    work = Work(monkeypatch)
    texts = ["{" + unit * (num // len(unit)) for num in (4 * NUM_CHARS, 16 * NUM_CHARS)]
    assert work.of(lambda: read(texts[1])) <= MAX_GROWTH * work.of(lambda: read(texts[0])) + 100
    began_s = time.thread_time()
    read("{" + unit * (100_000 // len(unit)))
    assert time.thread_time() - began_s < 1.5
