"""Replies reach the frontend that assigned their uid."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import messages.channels
from messages.channels import Receiver, Sender, Waiter
from messages.columns import pack_int32, pack_int64, unpack_int32, unpack_int64
from messages.frontends import FrontendSenders
from messages.ring.peers import ToFrontend
from messages.ring.replies import (
    PositionLogprobs,
    PrefilledRow,
    StepReplies,
    TokenLogprob,
    Usage,
    UserReply,
)
from messages.ring.requests import DropBefore, FramesLost
from messages.ring.uids import UIDS_PER_BLOCK, frontend_blocks, frontend_socket
from runtime.run_dir import RunDir

N = UIDS_PER_BLOCK
TIMEOUT_S = 90.0


class Frontends:
    """The receivers of three frontends, and the senders to them."""

    def __init__(self, run_dir: RunDir):
        self.receivers: dict[int, Receiver[ToFrontend]] = {
            number: Receiver(run_dir.socket(frontend_socket(number)), ToFrontend) for number in (1, 2, 3)
        }
        self.senders = FrontendSenders(
            lambda name: Sender(run_dir.socket(name)), Sender.close, lambda: frontend_blocks(run_dir.sockets())
        )

    def take(self, number: int) -> ToFrontend:
        waiter = Waiter()
        waiter.add_channel(self.receivers[number])
        waiter.wait(TIMEOUT_S)
        (message,) = self.receivers[number].receive()
        return message

    def close(self) -> None:
        self.senders.close()
        for receiver in self.receivers.values():
            receiver.close()


@pytest.fixture
def frontends() -> Iterator[Frontends]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        frontends = Frontends(RunDir(Path(directory)))
        yield frontends
        frontends.close()


def step(uids: list[int], finals: tuple[UserReply, ...] = ()) -> StepReplies:
    return StepReplies(
        7,
        pack_int64(uids),
        pack_int32(uid % N for uid in uids),
        pack_int32(10 * (uid % N) for uid in uids),
        tuple(str(uid % N) for uid in uids),
        finals,
    )


def test_a_step_of_one_frontend_crosses_as_it_is(frontends: Frontends):
    whole = step([2 * N + 1, 2 * N + 2], (UserReply(2 * N + 3, 0, "length"),))
    frontends.senders.send(whole)
    assert frontends.take(2) == whole


def test_all_receive_of_lost_frames_also_those_that_nothing_has_been_sent(frontends: Frontends):
    """The lost frames may have been the first ones of their requests."""
    frontends.senders.expect(2 * N + 1)
    frontends.senders.forget(DropBefore(2 * N))
    lost = FramesLost("detokenizer", 7, 1, 1)
    frontends.senders.send(lost)
    assert [frontends.take(number) for number in (2, 3)] == [lost, lost]
    assert list(frontends.receivers[1].receive()) == [], "its frontend is gone"


def test_a_step_of_several_frontends_is_taken_apart(frontends: Frontends):
    finals = (UserReply(3 * N + 9, 0, "stop"), UserReply(N + 8, 0, "length"))
    frontends.senders.send(step([N + 1, 3 * N + 2, 2 * N + 3, N + 4], finals))
    parts = {number: frontends.take(number) for number in (1, 2, 3)}
    expected = {1: ([1, 4], [8]), 2: ([3], []), 3: ([2], [9])}
    for number, (rows, ended) in expected.items():
        part = parts[number]
        assert isinstance(part, StepReplies)
        assert part.step_id == 7
        assert list(unpack_int64(part.uids)) == [number * N + row for row in rows]
        assert list(unpack_int32(part.attempts)) == rows
        assert list(unpack_int32(part.token_ids)) == [10 * row for row in rows]
        assert part.texts == tuple(map(str, rows))
        assert [final.uid for final in part.finals] == [number * N + uid for uid in ended]


def test_several_tokens_of_a_row_go_with_it(frontends: Frontends):
    tokens = tuple(PositionLogprobs(TokenLogprob(token_id, "x", b"x", -0.5), (), 0) for token_id in (2, 3, 5))
    whole = msgspec.structs.replace(
        step([N + 1, 2 * N + 2, N + 3]),
        token_ids=pack_int32([1, 2, 3, 4, 5]),
        num_tokens=pack_int32([1, 3, 1]),
        logprob_entries=pack_int32([1, 2, 4]),
        logprobs=tokens,
    )
    frontends.senders.send(whole)
    first, second = frontends.take(1), frontends.take(2)
    assert isinstance(first, StepReplies)
    assert isinstance(second, StepReplies)
    assert (list(unpack_int32(first.token_ids)), first.num_tokens) == ([1, 5], b"")
    assert (list(unpack_int32(first.logprob_entries)), first.logprobs) == ([1], tokens[2:])
    assert (list(unpack_int32(second.token_ids)), list(unpack_int32(second.num_tokens))) == ([2, 3, 4], [3])
    assert (list(unpack_int32(second.logprob_entries)), second.logprobs) == ([0, 1], tokens[:2])


def test_ways_to_frontends_that_are_gone_are_closed(frontends: Frontends):
    for number in (1, 2, 3):
        frontends.senders.send(UserReply(number * N + 1, 0, "stop"))
        frontends.take(number)
    frontends.senders.forget(DropBefore(3 * N, (1,)))
    for number in (1, 3):
        frontends.senders.send(UserReply(number * N + 2, 0, "stop"))
        frontends.take(number)
    assert frontends.senders.num_open == 2


def test_what_is_for_a_frontend_that_is_gone_is_dropped_and_opens_no_way(frontends: Frontends):
    frontends.senders.forget(DropBefore(3 * N, (1,)))
    frontends.senders.expect(2 * N + 1)
    frontends.senders.send(UserReply(2 * N + 1, 0, "stop"))
    assert frontends.senders.num_open == 0
    frontends.senders.send(step([N + 1, 2 * N + 2]))
    part = frontends.take(1)
    assert isinstance(part, StepReplies)
    assert list(unpack_int64(part.uids)) == [N + 1]
    assert frontends.senders.num_open == 1


def test_each_frontend_learns_of_its_own_prompts(frontends: Frontends):
    rows = tuple(PrefilledRow(uid, 0, Usage(5, 1)) for uid in (N + 1, 2 * N + 3))
    frontends.senders.send(msgspec.structs.replace(step([N + 1, 2 * N + 3]), prefilled=rows))
    for number, row in zip((1, 2), rows, strict=True):
        part = frontends.take(number)
        assert isinstance(part, StepReplies)
        assert part.prefilled == (row,)


def test_a_frontend_that_does_not_read_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(messages.channels, "MAX_QUEUED_FRAMES", 100)
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        run_dir = RunDir(Path(directory))
        receiver: Receiver[ToFrontend] = Receiver(run_dir.socket(frontend_socket(2)), ToFrontend)
        senders = FrontendSenders(lambda name: Sender(run_dir.socket(name)), Sender.close)
        waiter = Waiter()
        waiter.add_channel(receiver)
        lost = FramesLost("detokenizer", 7, 1, 1)
        for message in (*(step([N + 1, 2 * N + 2]) for _ in range(120)), lost):
            senders.send(message)
            waiter.wait(TIMEOUT_S)
            (taken,) = receiver.receive()
            assert taken == lost or list(unpack_int64(taken.uids)) == [2 * N + 2]
        senders.close()
        receiver.close()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "dropped StepReplies and the messages after it"
    ]
