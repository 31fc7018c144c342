import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detokenizer_proc.stop_strings import StopFinder


def find_stop_slowly(text: str, stops: tuple[str, ...]) -> tuple[str, str] | None:
    """Returns (text before the stop string, stop string) of the match that ends first, the longest of those."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return None


def without_possible_stop(text: str, stops: tuple[str, ...]) -> str:
    for start in range(len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[:start]
    return text


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text("abc", max_size=4), max_size=10)


@settings(max_examples=200, deadline=None)
@given(stops=STOPS, pieces=PIECES)
def test_what_is_shown_and_held_back_at_each_piece(stops: tuple[str, ...], pieces: list[str]) -> None:
    finder = StopFinder(stops, is_shown=False)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += finder.push(piece)
        expected = find_stop_slowly(text, stops)
        if expected is not None:
            assert (shown, finder.found) == expected
            assert finder.finish() == ""
            return
        assert finder.found is None
        assert shown == without_possible_stop(text, stops)
    assert shown + finder.finish() == text


@settings(max_examples=200, deadline=None)
@given(stops=STOPS, pieces=PIECES)
def test_a_shown_stop_string_holds_nothing_back(stops: tuple[str, ...], pieces: list[str]) -> None:
    finder = StopFinder(stops, is_shown=True)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += finder.push(piece)
        expected = find_stop_slowly(text, stops)
        if expected is not None:
            assert shown == "".join(expected)
            assert finder.found == expected[1]
            return
        assert shown == text
    assert finder.finish() == ""


@settings(max_examples=200, deadline=None)
@given(stops=STOPS, pieces=PIECES, num_free=st.integers(0, 10))
def test_stop_strings_that_end_early_do_not_count(stops: tuple[str, ...], pieces: list[str], num_free: int) -> None:
    finder = StopFinder(stops, is_shown=False)
    text = shown = ""
    num_free_chars = len("".join(pieces[:num_free]))
    for i, piece in enumerate(pieces):
        text += piece
        shown += finder.push(piece, i >= num_free)
        found = [
            (end, stop)
            for end in range(num_free_chars + 1, len(text) + 1)
            for stop in stops
            if text[:end].endswith(stop)
        ]
        if found:
            end, stop = min(found, key=lambda match: (match[0], -len(match[1])))
            assert (shown, finder.found) == (text[: end - len(stop)], stop)
            return
        assert finder.found is None
    assert shown + finder.finish() == text


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        (("ab",), ("ab",), "", "ab"),
        (("x",), ("hello x y",), "hello ", "x"),
        (("\n\n",), ("a\n", "b\n", "\nc"), "a\nb", "\n\n"),
        (("User:", "\nUser:"), ("hi\nUs", "er: x"), "hi", "\nUser:"),
        (("abcd", "bc"), ("xabc", "d"), "xa", "bc"),
        (("aab",), ("a", "a", "a", "b"), "a", "aab"),
        (("日本",), ("今日", "日", "本"), "今日", "日本"),
    ],
)
def test_examples(stops: tuple[str, ...], pieces: tuple[str, ...], shown: str, found: str) -> None:
    finder = StopFinder(stops, is_shown=False)
    assert "".join(finder.push(piece) for piece in pieces if finder.found is None) == shown
    assert finder.found == found


def test_a_long_stop_string_costs_only_what_matches_of_it() -> None:
    """Patterns of 4 million characters: tables for them would take seconds, searching each piece minutes."""
    finder = StopFinder(("a" * 4_000_000, "ab" * 100), is_shown=False)
    shown = "".join(finder.push("aaaa") for _ in range(500))
    assert shown == ""
    assert finder.push("b") == "a" * 1999
    assert finder.finish() == "ab"
