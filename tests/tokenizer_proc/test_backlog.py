from typing import Any

from messages.columns import pack_int32
from messages.ring.replies import Usage, UserReply
from messages.ring.requests import AbortMsg, DropBefore, EncodeMsg, SamplingParams, Sibling, Stamps, TokenizeMsg
from tokenizer_proc.backlog import LONG_TEXT_CHARS, Backlog

STAMPS = Stamps(received_ns=1)


def request(uid: int, num_chars: int = 2, **fields: Any) -> TokenizeMsg:
    return TokenizeMsg(uid, fields.pop("attempt", 0), "x" * num_chars, b"", SamplingParams(1), STAMPS, **fields)


def popped(backlog: Backlog) -> list[int]:
    """Pops all entries, short ones first. Returns the first uid of each."""
    uids: list[int] = []
    while entry := backlog.pop_short() or backlog.pop_long():
        uids.append(entry.message.uid)
        backlog.done(entry)
    assert backlog.gauges() == {"chars_in_hand": 0, "waiting_s": 0.0}
    assert not backlog.has_short
    assert not backlog.has_long
    return uids


def test_short_texts_go_first_and_long_ones_the_shortest_first() -> None:
    backlog = Backlog()
    backlog.add(request(1, 3 * LONG_TEXT_CHARS))
    backlog.add(request(2, is_long=True))
    backlog.add(EncodeMsg(3, "x" * 2 * LONG_TEXT_CHARS))
    backlog.add(request(4))
    backlog.add(EncodeMsg(5, "x"))
    assert popped(backlog) == [4, 5, 2, 3, 1]


def test_texts_of_one_http_request_take_turns_with_others() -> None:
    backlog = Backlog()
    for uid in range(1, 6):
        backlog.add(request(uid, group=1))
    backlog.add(request(6, group=6))
    backlog.add(request(7, group=6))
    backlog.add(EncodeMsg(8, "x"))
    assert popped(backlog) == [1, 6, 8, 2, 7, 3, 4, 5]


def test_what_is_here_is_counted_until_it_is_answered() -> None:
    backlog = Backlog()
    backlog.add(request(1, 7))
    entry = backlog.pop_short()
    assert entry is not None
    gauges = backlog.gauges()
    assert gauges["chars_in_hand"] == 7
    assert gauges["waiting_s"] >= 0
    backlog.done(entry)
    assert popped(backlog) == []


def test_a_request_that_is_aborted_ends_at_once_and_is_never_read() -> None:
    backlog = Backlog()
    backlog.add(request(1, output_ids=pack_int32([5, 6])))
    backlog.add(request(2, is_long=True))
    final = backlog.abort(AbortMsg(1, 0, "timeout"))
    assert final == UserReply(1, 0, "timeout", usage=Usage(completion_tokens=2), stamps=STAMPS)
    assert backlog.abort(AbortMsg(1, 0)) is None
    assert backlog.abort(AbortMsg(2, 0)) is not None
    assert popped(backlog) == []


def test_of_several_choices_those_that_are_requested_are_read() -> None:
    backlog = Backlog()
    backlog.add(request(1, siblings=(Sibling(2, 0), Sibling(3, 0))))
    for uid in (1, 3):
        assert backlog.abort(AbortMsg(uid, 0)) is not None
    entry = backlog.pop_short()
    assert entry is not None
    assert list(entry.requested) == [2]
    assert backlog.abort(AbortMsg(2, 0)) is not None
    assert not entry.requested  # while it is being read
    backlog.done(entry)
    assert popped(backlog) == []


def test_an_abort_of_what_is_not_here_continues() -> None:
    backlog = Backlog()
    backlog.add(request(1, attempt=1))
    backlog.add(EncodeMsg(2, "x"))
    assert [backlog.abort(AbortMsg(uid, 0)) for uid in (1, 2, 9)] == [None] * 3
    assert popped(backlog) == [1, 2]
    assert backlog.abort(AbortMsg(1, 1)) is None


def test_a_later_attempt_replaces_an_earlier_one() -> None:
    backlog = Backlog()
    backlog.add(request(1, siblings=(Sibling(2, 0),)))
    backlog.add(request(1, attempt=1))
    first = backlog.pop_short()
    assert first is not None
    assert list(first.requested) == [2]
    backlog.done(first)
    second = backlog.pop_short()
    assert second is not None
    assert (second.message.uid, list(second.requested)) == (1, [1])
    backlog.done(second)
    assert popped(backlog) == []


def test_requests_of_a_frontend_that_is_gone_are_dropped() -> None:
    backlog = Backlog()
    for uid in (1, 2 * 2**32 + 1, 3 * 2**32 + 1):
        backlog.add(request(uid))
    backlog.forget(DropBefore(3 * 2**32, (1,)))
    assert popped(backlog) == [1, 3 * 2**32 + 1]
