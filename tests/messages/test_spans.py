"""Spans of a prompt: which are accepted, and the text without them."""

from array import array

import pytest

from messages.errors import RequestError
from messages.ring.spans import DIGEST_BYTES, MAX_SPANS, PromptSpan, check_spans, without_spans

DIGEST = bytes(range(DIGEST_BYTES))


def spans_at(*places: tuple[int, int]) -> list[PromptSpan]:
    return [PromptSpan(start, length, DIGEST) for start, length in places]


@pytest.mark.parametrize("places", [(), ((0, 10),), ((0, 1), (1, 1), (9, 1)), ((3, 4),)])
def test_spans_in_order_within_the_prompt_are_accepted(places):
    check_spans(spans_at(*places), 10)


@pytest.mark.parametrize(
    "places",
    [((0, 11),), ((9, 2),), ((-1, 2),), ((3, 0),), ((3, -1),), ((0, 4), (3, 2)), ((5, 2), (0, 2)), ((10, 1),)],
)
def test_other_places_are_refused(places):
    with pytest.raises(RequestError, match="must be in order, not overlap, and lie within the prompt of 10 tokens"):
        check_spans(spans_at(*places), 10)


def test_more_spans_than_the_limit_are_refused():
    check_spans(spans_at(*((start, 1) for start in range(MAX_SPANS))), MAX_SPANS + 1)
    with pytest.raises(RequestError, match=f"at most {MAX_SPANS} spans, this one has {MAX_SPANS + 1}"):
        check_spans(spans_at(*((start, 1) for start in range(MAX_SPANS + 1))), MAX_SPANS + 1)


@pytest.mark.parametrize("digest", [b"", DIGEST[:-1], DIGEST + b"\0"])
def test_a_digest_of_another_length_is_refused(digest):
    with pytest.raises(RequestError, match=f"has {len(digest)} bytes, not {DIGEST_BYTES}"):
        check_spans([PromptSpan(0, 1, digest)], 10)


def test_the_text_has_no_token_of_a_span_and_is_not_copied_without_spans():
    token_ids = array("i", range(10))
    assert without_spans(token_ids, ()) is token_ids
    assert list(without_spans(token_ids, spans_at((0, 2), (4, 3)))) == [2, 3, 7, 8, 9]
    assert list(without_spans(token_ids, spans_at((0, 10)))) == []
    assert list(token_ids) == list(range(10))
