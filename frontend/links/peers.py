"""The other frontends of the server: questions to all of them, and their questions to this one."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from messages.channels import Sender
from messages.frontends import FrontendSenders
from messages.ring.peers import PeerAnswer, PeerAsk, PeerQuestion, PeerReply
from messages.ring.uids import block_of

ASK_TIMEOUT_S = 1.0
"""A live frontend answers within milliseconds."""

MAX_PENDING = 256

Q = TypeVar("Q")
R = TypeVar("R")


class Replies(NamedTuple, Generic[R]):
    """The replies by process name; `num_missing` frontends were asked and did not reply."""

    by_name: dict[str, R]
    num_missing: int


class Peers:
    """Asks and answers questions. `open_sender` opens a channel to a socket by its name."""

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
        self._pending: dict[int, dict[int, asyncio.Future[PeerReply]]] = {}
        """The replies to each question, by the block of uids of the frontend that is asked."""

    def register(self, kind: type[Q], answer: Callable[[Q], PeerReply]) -> None:
        """Calls `answer` for each question of this kind from another frontend."""
        self._answerers[kind] = answer

    async def ask_all(self, question: PeerQuestion, kind: type[R]) -> Replies[R]:
        """Returns the replies of type `kind` that arrive within `ASK_TIMEOUT_S`.

        Does not wait for frontends that die in the meantime. A late one still carries out the request when it is
        responsive again. Raises `UnavailableError` if too many calls are waiting already.
        """
        names = {status.uid_block: status.name for status in self._processes.other_fronts(self._own_block)}
        if not names:
            return Replies({}, 0)
        if len(self._pending) >= MAX_PENDING:
            raise UnavailableError(f"{MAX_PENDING} calls wait for other frontends", "too_many_calls", 1)
        uid, loop = self._next_uid(), asyncio.get_running_loop()
        asked = self._pending[uid] = {block: loop.create_future() for block in names}
        try:
            for block in names:
                self._senders.send_to(block, PeerAsk(uid, question))
            await asyncio.wait(asked.values(), timeout=ASK_TIMEOUT_S)
        finally:
            del self._pending[uid]
        replied = [(block, each.result()) for block, each in asked.items() if each.done() and not each.cancelled()]
        replies = {names[block]: reply for block, reply in replied if isinstance(reply, kind)}
        return Replies(replies, len(names) - len(replies))

    def accept(self, message: PeerAsk | PeerAnswer) -> None:
        """Answers a question, or passes an answer to its caller. Late answers are dropped."""
        match message:
            case PeerAsk(uid, question):
                reply = self._answerers[type(question)](question)
                self._senders.send_to(block_of(uid), PeerAnswer(uid, self._own_block, reply))
            case PeerAnswer(uid, block, reply):
                asked = self._pending.get(uid, {}).get(block)
                if asked is not None and not asked.done():
                    asked.set_result(reply)

    def follow(self) -> None:
        """Call it after each process table: stops waiting for frontends that are gone, and closes their channels."""
        living = {status.uid_block for status in self._processes.other_fronts(self._own_block)}
        for asked in self._pending.values():
            for block in asked.keys() - living:
                asked[block].cancel()
        gone = self._processes.find_gone_frontends(self._own_block)
        if gone is not None:
            self._senders.forget(gone)

    def __len__(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        self._senders.close()
