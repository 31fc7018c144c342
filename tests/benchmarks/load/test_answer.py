"""Bytes of an answer in, tokens and outcome out, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.load.answer import BROKEN, LOST, OK, UNFINISHED, Answer, StreamResult, refusal_text
from tests.benchmarks.scripted_server import DONE, SSE_HEAD, chunk, event, last_event, stream_of

GOOD = b"".join(stream_of(event([1]), b": keep-alive\n\n", event([2, 3]), event([]), last_event([4], 4, 3), DONE))


def read(*pieces: bytes) -> Answer:
    answer = Answer(StreamResult())
    for piece in pieces:
        answer.feed(piece)
    return answer


@given(st.sets(st.integers(1, len(GOOD) - 1), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_split_of_the_bytes_gives_the_same_result(cuts: set[int]) -> None:
    borders = [0, *sorted(cuts), len(GOOD)]
    answer = read(*(GOOD[begin:end] for begin, end in itertools.pairwise(borders)))
    result = answer.result
    assert (result.outcome, result.detail) == (OK, "")
    assert result.num_tokens == 4
    assert len(result.arrivals_ns) == 3, "an event without tokens is no arrival"
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.cached_tokens, result.usage.completion_tokens) == (5, 3, 4)
    assert result.timing["queue_ms"] == 1.5
    assert list(result.arrivals_ns) == sorted(result.arrivals_ns)
    assert result.begin_ns <= result.arrivals_ns[0] <= result.end_ns
    assert answer.can_reuse_connection


def test_byte_by_byte() -> None:
    assert read(*(GOOD[index : index + 1] for index in range(len(GOOD)))).result.num_tokens == 4


def test_a_comment_and_an_event_in_one_frame() -> None:
    answer = read(*stream_of(b": still here\n" + event([1]), last_event([2], 2), DONE))
    assert (answer.result.outcome, answer.result.num_tokens) == (OK, 2)


def test_an_error_event_is_a_failure_that_says_why() -> None:
    error = b'data: {"error": {"message": "the scheduler died", "type": "server_error"}}\n\n'
    answer = read(*stream_of(event([1]), error, DONE))
    assert (answer.result.outcome, answer.result.detail) == ("error event", "the scheduler died")
    assert answer.result.num_tokens == 1


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([event([1]), DONE], "no finish reason"),
        ([event([1]), last_event([2], 2)], "no [DONE]"),
        ([], "nothing at all"),
    ],
)
def test_an_answer_without_its_end_is_broken(frames: list[bytes], why: str) -> None:
    assert read(*stream_of(*frames)).result.outcome == BROKEN, why


def test_an_event_that_is_no_json_is_broken() -> None:
    answer = read(SSE_HEAD, chunk(event([1])), chunk(b"data: {half\n\n"))
    assert answer.is_complete
    assert answer.result.outcome == BROKEN
    assert not answer.can_reuse_connection


def test_bytes_that_are_no_http_are_broken() -> None:
    assert read(b"SSH-2.0-OpenSSH_9.6\r\n").result.outcome == BROKEN


def test_a_refusal_is_named_by_status_and_message() -> None:
    body = b'{"error": {"message": "the queue is full", "type": "overloaded"}}'
    head = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = read(head, body[:20], body[20:])
    assert (answer.result.outcome, answer.result.detail) == ("http 503", "the queue is full")
    assert answer.can_reuse_connection


def test_a_refusal_that_closes_the_connection() -> None:
    answer = read(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
    assert (answer.result.outcome, answer.result.detail) == ("http 413", "no")
    assert not answer.can_reuse_connection


def test_a_lost_connection_keeps_what_had_arrived_and_does_not_undo_an_end() -> None:
    answer = read(SSE_HEAD, chunk(event([1, 2])))
    assert (answer.result.outcome, answer.is_complete) == (UNFINISHED, False)
    answer.connection_lost("reset by peer")
    assert (answer.result.outcome, answer.result.detail, answer.result.num_tokens) == (LOST, "reset by peer", 2)
    ended = read(GOOD)
    ended.connection_lost("closed")
    assert ended.result.outcome == OK


def test_refusal_text_of_bodies_that_are_not_ours() -> None:
    assert refusal_text(b"<html>Bad Gateway</html>") == "<html>Bad Gateway</html>"
    assert refusal_text(b'{"error": "no"}') == '{"error": "no"}'
    assert refusal_text(b'["no"]') == '["no"]'
