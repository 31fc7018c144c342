"""Questions between frontends: every live frontend replies, and one that does not blocks no other."""

import asyncio
from typing import Any

import pytest

from frontend.errors import UnavailableError
from frontend.links import peers
from frontend.links.peers import Peers, Replies
from frontend.links.processes import ProcessView
from messages.control.processes import ProcessStatus, ProcessTable
from messages.ring.peers import AbortedOpen, CountOpen, OpenCount, PeerAnswer, PeerAsk
from messages.ring.uids import UIDS_PER_BLOCK, block_of
from tests.frontend.other_frontend import front

TIMEOUT_S = 90.0


class FakeSender:
    """The other end is the list `sent`."""

    def __init__(self, sent: list[tuple[str, Any]], name: str):
        self._sent = sent
        self._name = name

    def send_or_drop(self, message: Any) -> None:
        self._sent.append((self._name, message))

    def close(self) -> None:
        self._sent.append((self._name, "closed"))


class Opened:
    """The frontend of block 2, between those of blocks 1 and 3."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.processes = ProcessView()
        uids = iter(range(2 * UIDS_PER_BLOCK + 1, 3 * UIDS_PER_BLOCK))
        open_sender: Any = lambda name: FakeSender(self.sent, name)  # noqa: E731
        self.peers = Peers(self.processes, 2, lambda: next(uids), open_sender)
        self.show(front(1), front(2), front(3))

    def show(self, *fronts: ProcessStatus) -> None:
        self.processes.update(ProcessTable(fronts))
        self.peers.follow()

    async def ask(self) -> "asyncio.Task[Replies[OpenCount]]":
        asking = asyncio.create_task(self.peers.ask_all(CountOpen(), OpenCount))
        await asyncio.sleep(0)
        return asking

    def answer(self, block: int, reply: Any) -> None:
        (uid,) = {message.uid for _, message in self.sent if isinstance(message, PeerAsk)}
        self.peers.accept(PeerAnswer(uid, block, reply))


def test_all_others_are_asked_and_their_replies_have_their_names():
    async def run() -> None:
        opened = Opened()
        asking = await opened.ask()
        assert [name for name, _ in opened.sent] == ["frontend", "frontend.3"]
        assert {block_of(message.uid) for _, message in opened.sent} == {2}
        opened.answer(3, OpenCount(5))
        assert len(opened.peers) == 1
        opened.answer(1, OpenCount(4))
        async with asyncio.timeout(TIMEOUT_S):
            assert await asking == Replies({"frontend-3": OpenCount(5), "frontend": OpenCount(4)}, 0)
        assert len(opened.peers) == 0

    asyncio.run(run())


def test_one_that_is_alone_asks_no_one():
    async def run() -> None:
        opened = Opened()
        opened.show(front(1, "restarting"), front(2), front(3, "starting"))
        assert await opened.peers.ask_all(CountOpen(), OpenCount) == Replies({}, 0)
        assert opened.sent == []

    asyncio.run(run())


def test_one_that_dies_is_not_waited_for_and_its_channel_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "ASK_TIMEOUT_S", 10 * TIMEOUT_S)

    async def run() -> None:
        opened = Opened()
        asking = await opened.ask()
        opened.answer(3, OpenCount(5))
        opened.show(front(1, "restarting"), front(2), front(3))
        async with asyncio.timeout(TIMEOUT_S):
            assert await asking == Replies({"frontend-3": OpenCount(5)}, 1)
        assert opened.sent[-1] == ("frontend", "closed")

    asyncio.run(run())


def test_one_that_is_late_is_missing_and_so_is_a_reply_of_another_kind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "ASK_TIMEOUT_S", 0.05)

    async def run() -> None:
        opened = Opened()
        asking = await opened.ask()
        opened.answer(3, AbortedOpen(()))
        assert await asking == Replies({}, 2)
        opened.answer(1, OpenCount(4))

    asyncio.run(run())


def test_the_number_of_calls_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "MAX_PENDING", 1)

    async def run() -> None:
        opened = Opened()
        asking = await opened.ask()
        with pytest.raises(UnavailableError):
            await opened.peers.ask_all(CountOpen(), OpenCount)
        asking.cancel()
        await asyncio.wait([asking], timeout=TIMEOUT_S)
        assert len(opened.peers) == 0

    asyncio.run(run())


def test_a_question_is_answered_to_the_one_who_asked():
    async def run() -> None:
        opened = Opened()
        opened.peers.register(CountOpen, lambda question: OpenCount(7))
        opened.peers.accept(PeerAsk(3 * UIDS_PER_BLOCK + 9, CountOpen()))
        assert opened.sent == [("frontend.3", PeerAnswer(3 * UIDS_PER_BLOCK + 9, 2, OpenCount(7)))]

    asyncio.run(run())
