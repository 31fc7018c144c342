"""The other frontends of the server: what is asked of all of them at once, and what they ask this one."""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, TypeVar

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from messages.channels import Sender
from messages.frontends import FrontendSenders
from messages.ring.peers import PeerAnswer, PeerAsk, PeerQuestion, PeerReply
from messages.ring.uids import block_of

ASK_TIMEOUT_S = 1.0
"""One that is alive answers within milliseconds."""

MAX_PENDING = 256

Q = TypeVar("Q")
R = TypeVar("R")


class Replies(NamedTuple, Generic[R]):
    """What the others have replied, by the names of the processes; `num_missing` were asked and have not replied."""

    by_name: dict[str, R]
    num_missing: int


class Peers:
    """Asks and answers. `open_sender` makes a channel to the socket of the given name; `own_block` is of uids."""

    def __init__(
        self,
        processes: ProcessView,
        own_block: int,
        next_uid: Callable[[], int],
        open_sender: Callable[[str], Sender[Any]],
    ):
        self._processes = processes
        self._own_block = own_block
        self._next_uid = next_uid
        self._senders = FrontendSenders(open_sender, lambda sender: sender.close())
        self._answerers: dict[type[Any], Callable[[Any], PeerReply]] = {}
        self._pending: dict[int, _PendingQuestion] = {}

    def register(self, kind: type[Q], answer: Callable[[Q], PeerReply]) -> None:
        """Has `answer` called for each question of this kind that another frontend asks."""
        self._answerers[kind] = answer

    async def ask_all(self, question: PeerQuestion, kind: type[R]) -> Replies[R]:
        """Returns the replies, of type `kind`, of those that give one within `ASK_TIMEOUT_S`.

        One that dies meanwhile is not waited for; one that is late does what it was asked to when it turns again.
        Raises `UnavailableError` where too many calls wait already.
        """
        names = {status.uid_block: status.name for status in self._processes.other_fronts(self._own_block)}
        if not names:
            return Replies({}, 0)
        if len(self._pending) >= MAX_PENDING:
            raise UnavailableError(f"{MAX_PENDING} calls wait for other frontends", "too_many_calls", 1)
        uid, asked = self._next_uid(), _PendingQuestion(names)
        self._pending[uid] = asked
        try:
            for block in names:
                self._senders.send_to(block, PeerAsk(uid, question))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    await asked.is_over.wait()
        finally:
            del self._pending[uid]
        replies = {names[block]: reply for block, reply in asked.replies.items() if isinstance(reply, kind)}
        return Replies(replies, len(names) - len(replies))

    def accept(self, message: PeerAsk | PeerAnswer) -> None:
        """Answers a question, or gives an answer to whoever waits for it; nobody does for one that comes too late."""
        match message:
            case PeerAsk(uid, question):
                reply = self._answerers[type(question)](question)
                self._senders.send_to(block_of(uid), PeerAnswer(uid, self._own_block, reply))
            case PeerAnswer(uid, block, reply):
                asked = self._pending.get(uid)
                if asked is not None:
                    asked.note(block, reply)

    def follow(self) -> None:
        """Call it after each process table: those that are gone are not waited for, and their channels are closed."""
        living = {status.uid_block for status in self._processes.other_fronts(self._own_block)}
        for asked in self._pending.values():
            asked.wait_only_for(living)
        gone = self._processes.find_gone_frontends(self._own_block)
        if gone is not None:
            self._senders.forget(gone)

    def __len__(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        self._senders.close()


class _PendingQuestion:
    """The replies to one question; `is_over` once nobody is left who may still reply."""

    def __init__(self, blocks: Collection[int]):
        self._waiting = set(blocks)
        self.replies: dict[int, PeerReply] = {}
        self.is_over = asyncio.Event()

    def note(self, block: int, reply: PeerReply) -> None:
        self.replies[block] = reply
        self.wait_only_for(self._waiting - {block})

    def wait_only_for(self, blocks: Collection[int]) -> None:
        self._waiting.intersection_update(blocks)
        if not self._waiting:
            self.is_over.set()
