"""The keys of pages: equal for equal ids and equal spans, and only for these."""

from array import array
from itertools import product

import pytest

from messages.ring.spans import PromptSpan
from scheduler_proc.deciding.pages.page_keys import leading_ids, page_key
from tests.scheduler_proc.simulated_spans import span_of

SIZE = 4
IDS = array("i", [9] * 16)


def pages_of(spans: list[PromptSpan], ids: "array[int]" = IDS, start: int = 0) -> list[bytes]:
    key = page_key(ids, spans, start, len(ids), SIZE)
    assert len(key) == 4 * (len(ids) - start)
    return [key[place : place + 4 * SIZE] for place in range(0, len(key), 4 * SIZE)]


TEXT = pages_of([])


def test_without_spans_a_key_is_the_ids():
    assert b"".join(TEXT) == IDS.tobytes()


@pytest.mark.parametrize(("start", "length"), [(0, 1), (3, 1), (3, 2), (4, 4), (5, 7), (0, 16), (15, 1)])
def test_pages_with_tokens_of_a_span_have_keys_of_its_digest_and_the_others_their_ids(start, length):
    own, other = pages_of([span_of(start, length, 1)]), pages_of([span_of(start, length, 2)])
    assert own == pages_of([span_of(start, length, 1)])
    for page, (one, two) in enumerate(zip(own, other, strict=True)):
        if start < (page + 1) * SIZE and page * SIZE < start + length:
            assert one != two
            assert max(array("i", one)) < 0
            assert max(array("i", two)) < 0
        else:
            assert one == two == TEXT[page]


def test_a_key_depends_on_the_place_the_length_and_the_kind_of_a_span_and_on_the_ids():
    whole = span_of(2, 5)
    changed = [
        PromptSpan(1, 5, whole.digest),
        PromptSpan(2, 6, whole.digest),
        PromptSpan(2, 5, whole.digest, "another"),  # type: ignore[arg-type]
    ]
    keys = {pages_of([span])[0] for span in (whole, *changed)}
    keys.add(pages_of([whole], array("i", [9, 8, *IDS[2:]]))[0])
    assert len(keys) == 5


def test_the_middle_pages_of_a_long_span_differ():
    first, *middle, last = pages_of([span_of(0, 16)])
    assert len({first, *middle, last}) == 4


def test_a_key_of_later_pages_is_the_end_of_the_whole_key():
    spans = [span_of(3, 2, 1), span_of(6, 1, 2), span_of(11, 3, 3)]
    for start in (4, 8, 12):
        assert pages_of(spans, start=start) == pages_of(spans)[start // SIZE :]


def test_every_order_of_two_spans_in_a_page_has_its_own_key():
    keys = {pages_of([span_of(0, 1, one), span_of(1, 1, two)])[0] for one, two in product(range(4), repeat=2)}
    assert len(keys) == 16


def test_guesses_end_before_a_page_of_a_span():
    key = array("i", page_key(IDS, [span_of(9, 1)], 0, 16, SIZE))
    assert list(leading_ids(key)) == [9] * 8
    assert leading_ids(key[:8]) == key[:8]
    assert list(leading_ids(key[8:])) == []
    assert list(leading_ids(array("i"))) == []
