"""The frontend's end of the ring: requests leave for a tokenizer, replies arrive for the registry."""

import logging
from collections.abc import Callable, Collection, Sequence

from messages.channels import MAX_QUEUED_FRAMES, Receiver, Sender
from messages.ring.cache import CacheQuestion, ExplainCache, ListCache
from messages.ring.peers import ToFrontend
from messages.ring.requests import (
    AbortMsg,
    DecodeMsg,
    DropBefore,
    EncodeMsg,
    FlushCache,
    FramesLost,
    TokenizeMsg,
    ToTokenizer,
)
from messages.ring.uids import frontend_socket
from runtime.process import ProcessLink

FIRST_WORKER = "tokenizer"

FromFrontend = TokenizeMsg | AbortMsg | DropBefore | FlushCache | EncodeMsg | DecodeMsg | CacheQuestion

log = logging.getLogger("sluice.frontend")


class Ring:
    """Distributes requests over the tokenizers. All messages about a request go to the same one while it exists.

    `deliver` is called with each reply.
    """

    def __init__(self, link: ProcessLink, deliver: Callable[[ToFrontend], None]):
        self._link = link
        self._deliver = deliver
        path = link.run_dir.socket(frontend_socket(link.uid_block))
        self._receiver: Receiver[ToFrontend] = Receiver(path, ToFrontend)
        link.add_receiver(self._receiver)
        self._senders: dict[str, Sender[ToTokenizer]] = {}
        self._workers: Sequence[str] = (FIRST_WORKER,)
        self._alive: Collection[str] = ()
        self._num_sent = 0
        self._worker_of: dict[int, str] = {}
        """The tokenizer of each open request, by uid."""

    def fileno(self) -> int:
        """The descriptor for the event loop; edge-triggered, so `receive` empties the channel."""
        return self._receiver.fileno()

    def follow(self, workers: Sequence[str], alive: Collection[str]) -> None:
        """Distributes new requests over `workers` from now on; without any, messages wait for the first tokenizer.

        `alive` are all serving tokenizers; one that gets no new requests still receives messages about its own.
        """
        self._workers, self._alive = workers or (FIRST_WORKER,), alive

    def worker_of(self, uid: int) -> str | None:
        """Returns the tokenizer that an open request was sent to."""
        return self._worker_of.get(uid)

    def send(self, message: FromFrontend) -> None:
        """Queues `message` for its tokenizer, or a `DropBefore` for all of them. Raises `ChannelFullError`."""
        match message:
            case TokenizeMsg(uid):
                worker = self._choose(uid, self._workers)
                self._sender(worker).send(message)
                self._worker_of[uid] = worker
                for sibling in message.siblings:
                    self._worker_of[sibling.uid] = worker
            case DropBefore():
                for worker in self._workers:
                    self._sender(worker).send(message)
            case AbortMsg():
                self._sender(self._choose(message.uid, self._alive)).send(message)
            case FlushCache() | EncodeMsg() | DecodeMsg() | ExplainCache() | ListCache():
                self._sender(self._choose(message.uid, self._workers)).send(message)

    def receive(self, on_lost: Callable[[FramesLost], None]) -> None:
        """Delivers all replies that have arrived, and passes losses to `on_lost` before later messages.

        If a reply cannot be processed, only that reply is lost.
        """
        for message in self._receiver.receive(limit=MAX_QUEUED_FRAMES):
            try:
                if isinstance(message, FramesLost):
                    on_lost(message)
                else:
                    self._deliver(message)
            except Exception:
                log.exception("dropped the rest of an inconsistent %s", type(message).__name__)

    def tidy(self, is_open: Callable[[int], bool]) -> None:
        """Forgets the tokenizers of ended requests, and closes unused channels. Call it once a second."""
        self._worker_of = {uid: worker for uid, worker in self._worker_of.items() if is_open(uid)}
        for worker in set(self._senders) - {FIRST_WORKER, *self._workers, *self._worker_of.values()}:
            self._link.close_sender(self._senders.pop(worker))

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._receiver.close()

    def _choose(self, uid: int, among: Collection[str]) -> str:
        """Returns the worker that has the request if it is one of `among`, otherwise the next one in turn."""
        worker = self._worker_of.get(uid)
        if worker is not None and worker in among:
            return worker
        self._num_sent += 1
        return self._workers[self._num_sent % len(self._workers)]

    def _sender(self, worker: str) -> Sender[ToTokenizer]:
        sender = self._senders.get(worker)
        if sender is None:
            sender = self._senders[worker] = self._link.open_sender(worker)
        return sender
