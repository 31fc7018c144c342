"""ZeroMQ, and nothing else of it anywhere: typed one-way channels for requests, a two-way one for control.

The receiver binds, senders connect. A frame that does not decode is a bug between our own processes: it is logged with
its path and dropped. Frames of requests are numbered (`messages/frames.py`): one that comes twice is taken once, and in
the place of lost ones the receiver takes a `FramesLost`.
"""

import atexit
import logging
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
import zmq

from messages.errors import ChannelFullError
from messages.frames import HEADER, Arrivals, new_sender_id
from messages.ring.requests import FramesLost

T = TypeVar("T")

EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""As plain numbers: an operation on pyzmq's own enumerations takes several times as long."""

MAX_QUEUED_FRAMES = 100_000
"""Frames a channel holds for a receiver that does not read. A step is one frame, so this is minutes of steps."""

RECONNECT_INTERVAL_MS = 20
"""How often a sender looks for a receiver that is not there (yet, or because it is being replaced): a try is one system
call, and what waits in the channel reaches the receiver by so much later."""

log = logging.getLogger("sluice.channels")


# A context that is left at exit takes with it what is not sent yet; its end is waited for, as long as sockets linger.
atexit.register(lambda: zmq.Context.instance().destroy())


def _make_socket(kind: int) -> "zmq.Socket[bytes]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()  # pyright: ignore[reportUnknownVariableType]
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
    return socket


class Receiver(Generic[T]):
    """The one reader of a channel; `union` is the tagged union of what may arrive, `FramesLost` among it."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self.arrivals = Arrivals(path.stem)
        self.on_frame: Callable[[bytes], None] | None = None
        """Called with each frame that arrives, before it is looked at."""
        self._behind_gap: T | None = None
        """What came after lost frames, while word of those is being taken."""
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.PULL)
        path.unlink(missing_ok=True)
        self.socket.bind(f"ipc://{path}")

    def fileno(self) -> int:
        """A descriptor that becomes readable when something arrives (edge-triggered: then `receive` until empty)."""
        return int(self.socket.getsockopt(zmq.FD))

    def receive(self, limit: int = 1024) -> Iterator[T]:
        """Iterates over what has arrived, at most `limit` frames, and never waits."""
        num_taken = 0
        while num_taken < limit:
            if self._behind_gap is None:
                if not has_arrived(self.socket):
                    return
                message = self._open(self.socket.recv(zmq.NOBLOCK))
            else:
                message, self._behind_gap = self._behind_gap, None
            num_taken += self._behind_gap is None
            if message is not None:
                yield message

    def has_arrived(self) -> bool:
        """Tells whether `receive` has something."""
        return self._behind_gap is not None or has_arrived(self.socket)

    def receive_frames(self) -> Iterator[bytes]:
        """Iterates over the frames that have arrived as they are, for one who hands them on, and never waits."""
        while has_arrived(self.socket):
            frame = self.socket.recv(zmq.NOBLOCK)
            if self.on_frame is not None:
                self.on_frame(frame)
            yield frame

    def _open(self, frame: bytes) -> T | None:
        """Returns the message in the frame, `None` where it is not to be taken; after a gap that has to wait."""
        if len(frame) < HEADER.size:
            log.error("%s: dropped a frame of %d bytes, which has no number", self.path, len(frame))
            return None
        if self.on_frame is not None:
            self.on_frame(frame)
        sender, number = HEADER.unpack_from(frame)
        news = self.arrivals.note(sender, number)
        if news is False:
            log.warning("%s: dropped frame %d of sender %x, which has come before", self.path, number, sender)
            return None
        message = _decode(self._decoder, memoryview(frame)[HEADER.size :], self.path)
        if message is None:
            message = self._tell(self.arrivals.lost(sender, number))
        if news is not True:
            self._behind_gap, message = message, self._tell(news)
        return message

    def _tell(self, news: FramesLost) -> T:
        log.error("%s: frames %d to %d of sender %x are lost", self.path, news.first, news.last, news.sender)
        return cast(T, news)

    def close(self) -> None:
        self.socket.close()


class Sender(Generic[T]):
    """One of the writers of a channel. `num_sent` is the number of its latest frame."""

    def __init__(self, path: Path):
        self.path = path
        self.sender_id = new_sender_id()
        self.num_sent = 0
        self.on_frame: Callable[[bytes], None] | None = None
        """Called with each frame before it is sent."""
        self._num_dropped = 0
        """Since the channel was found full."""
        self._encoder = msgspec.msgpack.Encoder()
        self.socket = _make_socket(zmq.PUSH)
        self.socket.connect(f"ipc://{path}")

    def send(self, message: T) -> None:
        """Queues `message` and returns at once. Raises `ChannelFullError` where the receiver has stopped reading."""
        self.num_sent += 1  # also where there is no room, so that the receiver can notice what is missing
        self.hand_on(HEADER.pack(self.sender_id, self.num_sent) + self._encoder.encode(message))

    def hand_on(self, frame: bytes) -> None:
        """As `send`, for a frame that another sender has numbered."""
        if self.on_frame is not None:
            self.on_frame(frame)
        try:
            self._put(frame)
        except zmq.Again:
            raise ChannelFullError(f"{self.path}: {MAX_QUEUED_FRAMES} messages are waiting to be read") from None

    def send_or_drop(self, message: T) -> None:
        """Queues `message` and returns at once; it is dropped where the receiver has stopped reading.

        That is no loss for good: a receiver that reads again finds that frames are missing, one that does not is
        replaced, and either way the frontend continues the requests concerned.
        """
        try:
            self.send(message)
        except ChannelFullError as error:
            if not self._num_dropped:
                log.error("dropped %s and what follows: %s", type(message).__name__, error)
            self._num_dropped += 1
            return
        if self._num_dropped:
            log.warning("%s: the receiver reads again; %d messages were dropped", self.path, self._num_dropped)
            self._num_dropped = 0

    def _put(self, frame: bytes) -> None:
        self.socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Closes the channel after at most 0.2 s in which queued messages may still leave."""
        self.socket.close(linger=200)


class _Client(Generic[T]):
    """An end that connects, to send and to receive. `union` is what may arrive."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.DEALER)

    def receive(self) -> Iterator[T]:
        """Iterates over what has arrived and never waits."""
        for _ in range(MAX_QUEUED_FRAMES):
            if not has_arrived(self.socket):
                return
            message = _decode(self._decoder, self.socket.recv(zmq.NOBLOCK), self.path)
            if message is not None:
                yield message


class ControlClient(_Client[T]):
    """A process's end of the control plane. `union` is what the launcher may send."""

    def __init__(self, path: Path, name: str, union: Any):
        super().__init__(path, union)
        self.socket.setsockopt(zmq.IDENTITY, _identity(name, os.getpid()))
        self.socket.connect(f"ipc://{path}")

    def fileno(self) -> int:
        return int(self.socket.getsockopt(zmq.FD))

    def send(self, message: Any) -> None:
        """Queues `message`; it is dropped where the launcher has stopped reading (the lifeline tells of its death)."""
        try:
            self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("%s: the launcher does not read, dropped %s", self.path, type(message).__name__)

    def close(self) -> None:
        """Closes after at most 0.5 s in which the last reports may still leave, also at the end of the process."""
        self.socket.close(linger=500)


class AskClient(_Client[T]):
    """Asks at an `AskServer`; `union` is what it may answer."""

    def __init__(self, path: Path, union: Any):
        super().__init__(path, union)
        self.socket.connect(f"ipc://{path}")

    def ask(self, message: Any) -> None:
        self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        self.socket.close()


class _Server(Generic[T]):
    """An end that binds, to receive from many connections and to send to each. `union` is what may arrive."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.ROUTER)
        path.unlink(missing_ok=True)
        self.socket.bind(f"ipc://{path}")

    def send_to(self, identity: bytes, message: Any) -> None:
        """Queues `message` for one connection; it is dropped where that is gone."""
        self.socket.send_multipart([identity, self._encoder.encode(message)], zmq.NOBLOCK)

    def _receive(self) -> Iterator[tuple[bytes, T]]:
        """Yields (connection, message) of what has arrived and never waits."""
        while has_arrived(self.socket):
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            message = _decode(self._decoder, frames[-1], self.path)
            if message is not None:
                yield frames[0], message

    def close(self) -> None:
        """Closes after at most 0.2 s in which the last messages may still leave."""
        self.socket.close(linger=200)


class ControlServer(_Server[T]):
    """The launcher's end of the control plane; `union` is what processes may send.

    Processes are told apart by name. Of two under one name the admitted one is meant, or else the one heard last.
    """

    def __init__(self, path: Path, union: Any):
        super().__init__(path, union)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._admitted: dict[str, bytes] = {}
        self._heard: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        """The names of connections that have been renamed."""

    def send(self, name: str, message: Any) -> None:
        """Queues `message` for process `name`; it is dropped where that process is not connected."""
        self.send_to(self.identity_of(name), message)

    def admit(self, name: str, pid: int) -> None:
        """Lets `name` mean the process `pid` from now on, whoever else calls itself so."""
        self._admitted[name] = _identity(name, pid)

    def identity_of(self, name: str) -> bytes:
        """Returns the connection that `name` means now, to send to it also when the name has gone to another."""
        return self._admitted.get(name) or self._heard.get(name) or name.encode()

    def send_to_pid(self, name: str, pid: int, message: Any) -> None:
        """Queues `message` for the process `pid` that calls itself `name`, admitted or not."""
        self.send_to(_identity(name, pid), message)

    def rename(self, name: str, new_name: str) -> None:
        """Lets `new_name` mean the process that `name` means now, and `name` nobody."""
        identity = self._admitted.pop(name)
        self._admitted[new_name] = identity
        self._names[identity] = new_name

    def forget(self, name: str) -> None:
        """Lets `name` mean nobody."""
        identity = self._admitted.pop(name, None)
        self._heard.pop(name, None)
        if identity is not None:
            self._names.pop(identity, None)

    def receive(self, from_anybody: Any = object) -> Iterator[tuple[str, T]]:
        """Yields (name, message) of what has arrived and never waits.

        Where a name has been admitted, others that call themselves so are heard only with `from_anybody`, a type.
        """
        for identity, message in self._receive():
            name = self._names.get(identity) or identity.rpartition(b".")[0].decode(errors="replace")
            if self._admitted.get(name, identity) != identity and not isinstance(message, from_anybody):
                continue
            self._heard[name] = identity
            yield name, message


class AskServer(_Server[T]):
    """A socket at which anybody who may open it asks and is answered; `union` is what may be asked."""

    def receive(self) -> Iterator[tuple[bytes, T]]:
        """Iterates over (asker, message) of what has arrived and never waits."""
        return self._receive()


class Readable(Protocol):
    """A channel at which something may arrive."""

    socket: "zmq.Socket[bytes]"


class Waiter:
    """Blocks until one of its channels or descriptors has something, or a time is over."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._ready: list[tuple[Any, int]] = []

    def add_channel(self, channel: Readable) -> None:
        self._poller.register(channel.socket, zmq.POLLIN)

    def add_descriptor(self, descriptor: int) -> None:
        self._poller.register(descriptor, zmq.POLLIN)

    def remove_descriptor(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def wait(self, timeout_s: float) -> set[int]:
        """Returns the readable plain descriptors; messages are then taken from the channels."""
        self._ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        return {item for item, _ in self._ready if isinstance(item, int)}

    def has_found(self, channel: Readable) -> bool:
        """Tells whether the last `wait` returned with something in this channel."""
        for item, _ in self._ready:  # noqa: SIM110 (a third of the time of `any`; this runs once a step)
            if item is channel.socket:
                return True
        return False


def has_arrived(socket: "zmq.Socket[bytes]") -> bool:
    """Tells whether `recv` has something to return. A third of the time of a `recv` that raises `zmq.Again`."""
    return bool(cast("int", socket.get(EVENTS)) & POLLIN)


def _identity(name: str, pid: int) -> bytes:
    """Unique for each process: a second one under a name must not take over the first one's connection."""
    return f"{name}.{pid}".encode()


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes | memoryview, path: Path) -> T | None:
    try:
        return decoder.decode(frame)
    except msgspec.DecodeError as error:
        text = "%s: dropped a frame of %d bytes that does not decode: %s (pid %d)"
        log.error(text, path, len(frame), error, os.getpid())
        return None
