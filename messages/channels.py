"""All use of ZeroMQ: typed one-way channels for requests, and two-way channels for control.

The receiver binds, senders connect. A frame that does not decode is a bug between our own processes: it is logged with
its path and dropped. Frames of requests are numbered (`messages/frames.py`): a duplicate is dropped, and a `FramesLost`
takes the place of missing frames.
"""

import atexit
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
import zmq

from messages.errors import ChannelFullError
from messages.frames import HEADER, Arrivals
from messages.ring.requests import FramesLost

T = TypeVar("T")

EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain numbers: operations on pyzmq's enumerations take several times as long."""

MAX_QUEUED_FRAMES = 100_000
"""Frames that a channel queues for a receiver that does not read. A step is one frame, so this is minutes of steps."""

RECONNECT_INTERVAL_MS = 20
"""How often a sender tries to reach a receiver that has not started or is being replaced. A try is one system call;
queued messages are delayed by up to this interval."""

log = logging.getLogger("sluice.channels")


def send_queued() -> None:
    """Sends the messages that are still queued, as the process ends. Waits at most as long as the sockets linger."""
    zmq.Context.instance().destroy()


atexit.register(send_queued)


def _make_socket(kind: int) -> "zmq.Socket[bytes]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()  # pyright: ignore[reportUnknownVariableType]
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
    return socket


class Receiver(Generic[T]):
    """The one reader of a channel. `union` is the tagged union of the messages that may arrive, with `FramesLost`."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self.arrivals = Arrivals(path.stem)
        self.on_frame: Callable[[bytes], None] | None = None
        """Called with each frame that arrives, before it is checked."""
        self._behind_gap: T | None = None
        """The message that came after lost frames, until `FramesLost` has been returned."""
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.PULL)
        path.unlink(missing_ok=True)
        self.socket.bind(f"ipc://{path}")

    def fileno(self) -> int:
        """A descriptor that becomes readable when a frame arrives (edge-triggered: then `receive` until empty)."""
        return int(self.socket.getsockopt(zmq.FD))

    def receive(self, limit: int = 1024) -> Iterator[T]:
        """Yields the messages that have arrived, of at most `limit` frames. Never waits."""
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
        """True if `receive` would yield a message."""
        return self._behind_gap is not None or has_arrived(self.socket)

    def receive_frames(self) -> Iterator[bytes]:
        """Yields the frames that have arrived, undecoded, so that they can be forwarded. Never waits."""
        while has_arrived(self.socket):
            frame = self.socket.recv(zmq.NOBLOCK)
            if self.on_frame is not None:
                self.on_frame(frame)
            yield frame

    def _open(self, frame: bytes) -> T | None:
        """Returns the message in the frame, `None` if it is dropped. After a gap, `FramesLost` comes first."""
        if len(frame) < HEADER.size:
            log.error("%s: dropped a frame of %d bytes, which has no number", self.path, len(frame))
            return None
        if self.on_frame is not None:
            self.on_frame(frame)
        sender, number = HEADER.unpack_from(frame)
        arrival = self.arrivals.record(sender, number)
        if arrival is False:
            log.warning("%s: dropped frame %d of sender %x, a duplicate", self.path, number, sender)
            return None
        message = _decode(self._decoder, memoryview(frame)[HEADER.size :], self.path)
        if message is None:
            message = self._report(self.arrivals.lost(sender, number))
        if arrival is not True:
            self._behind_gap, message = message, self._report(arrival)
        return message

    def _report(self, lost: FramesLost) -> T:
        log.error("%s: frames %d to %d of sender %x are lost", self.path, lost.first, lost.last, lost.sender)
        return cast(T, lost)

    def close(self) -> None:
        self.socket.close()


class Sender(Generic[T]):
    """One writer of a channel. `num_sent` is the number of its latest frame."""

    def __init__(self, path: Path):
        self.path = path
        self.sender_id = secrets.randbits(63)
        """Unique in the run."""
        self.num_sent = 0
        self.on_frame: Callable[[bytes], None] | None = None
        """Called with each frame before it is sent."""
        self._num_dropped = 0
        """Messages dropped since the channel became full."""
        self._encoder = msgspec.msgpack.Encoder()
        self.socket = _make_socket(zmq.PUSH)
        self.socket.connect(f"ipc://{path}")

    def send(self, message: T) -> None:
        """Queues `message` and returns at once. Raises `ChannelFullError` if the receiver has stopped reading."""
        self.num_sent += 1  # even if the channel is full, so that the receiver notices the missing frame
        self.hand_on(HEADER.pack(self.sender_id, self.num_sent) + self._encoder.encode(message))

    def hand_on(self, frame: bytes) -> None:
        """Like `send`, for a frame that another sender has numbered."""
        if self.on_frame is not None:
            self.on_frame(frame)
        try:
            self._put(frame)
        except zmq.Again:
            raise ChannelFullError(f"{self.path}: {MAX_QUEUED_FRAMES} messages are waiting to be read") from None

    def send_or_drop(self, message: T) -> None:
        """Queues `message` and returns at once. Drops it if the receiver has stopped reading.

        The affected requests recover: a receiver that reads again notices the missing frames, one that does not is
        replaced, and in both cases the frontend continues the requests.
        """
        try:
            self.send(message)
        except ChannelFullError as error:
            if not self._num_dropped:
                log.error("dropped %s and the messages after it: %s", type(message).__name__, error)
            self._num_dropped += 1
            return
        if self._num_dropped:
            log.warning("%s: the receiver reads again; %d messages were dropped", self.path, self._num_dropped)
            self._num_dropped = 0

    def _put(self, frame: bytes) -> None:
        self.socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Closes the channel. Waits at most 0.2 s for queued messages to be sent."""
        self.socket.close(linger=200)


class _Client(Generic[T]):
    """The connecting end of a two-way channel. `union` is the union of the messages that may arrive."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.DEALER)

    def fileno(self) -> int:
        return int(self.socket.getsockopt(zmq.FD))

    def receive(self) -> Iterator[T]:
        """Yields the messages that have arrived. Never waits."""
        for _ in range(MAX_QUEUED_FRAMES):
            if not has_arrived(self.socket):
                return
            message = _decode(self._decoder, self.socket.recv(zmq.NOBLOCK), self.path)
            if message is not None:
                yield message


class ControlClient(_Client[T]):
    """A process's end of the control plane. `union` is the union of the launcher's messages."""

    def __init__(self, path: Path, name: str, union: Any):
        super().__init__(path, union)
        self.socket.setsockopt(zmq.IDENTITY, _identity(name, os.getpid()))
        self.socket.connect(f"ipc://{path}")

    def send(self, message: Any) -> None:
        """Queues `message`. Drops it if the launcher has stopped reading; the lifeline reports a dead launcher."""
        try:
            self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("%s: the launcher is not reading, dropped %s", self.path, type(message).__name__)

    def close(self) -> None:
        """Closes the channel. The last reports have 0.5 s to be sent, even if the process is exiting."""
        self.socket.close(linger=500)


class AskClient(_Client[T]):
    """Sends questions to an `AskServer`. `union` is the union of its answers."""

    def __init__(self, path: Path, union: Any):
        super().__init__(path, union)
        self.socket.connect(f"ipc://{path}")

    def ask(self, message: Any) -> None:
        self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        self.socket.close()


class _Server(Generic[T]):
    """The binding end of a two-way channel, with many connections. `union` is the union of messages that may arrive."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.ROUTER)
        path.unlink(missing_ok=True)
        self.socket.bind(f"ipc://{path}")

    def send_to(self, identity: bytes, message: Any) -> None:
        """Queues `message` for one connection. Drops it if the connection is gone."""
        self.socket.send_multipart([identity, self._encoder.encode(message)], zmq.NOBLOCK)

    def _receive(self) -> Iterator[tuple[bytes, T]]:
        """Yields (connection, message) for each message that has arrived. Never waits."""
        while has_arrived(self.socket):
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            message = _decode(self._decoder, frames[-1], self.path)
            if message is not None:
                yield frames[0], message

    def close(self) -> None:
        """Closes the channel. Waits at most 0.2 s for the last messages to be sent."""
        self.socket.close(linger=200)


class ControlServer(_Server[T]):
    """The launcher's end of the control plane. `union` is the union of the processes' messages.

    Processes are identified by name. If two have the same name, it refers to the admitted one, or if none is admitted,
    to the one that sent the latest message.
    """

    def __init__(self, path: Path, union: Any):
        super().__init__(path, union)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._admitted: dict[str, bytes] = {}
        self._received_from: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        """Names of connections that were renamed."""

    def send(self, name: str, message: Any) -> None:
        """Queues `message` for process `name`. Drops it if that process is not connected."""
        self.send_to(self.identity_of(name), message)

    def admit(self, name: str, pid: int) -> None:
        """Makes `name` refer to process `pid` from now on, even if other processes use the name."""
        self._admitted[name] = _identity(name, pid)

    def identity_of(self, name: str) -> bytes:
        """Returns the connection that `name` refers to now. It stays valid after the name has passed to another."""
        return self._admitted.get(name) or self._received_from.get(name) or name.encode()

    def send_to_pid(self, name: str, pid: int, message: Any) -> None:
        """Queues `message` for the process `pid` that connected as `name`, admitted or not."""
        self.send_to(_identity(name, pid), message)

    def rename(self, name: str, new_name: str) -> None:
        """Makes `new_name` refer to the process that `name` refers to now; `name` becomes unused."""
        identity = self._admitted.pop(name)
        self._admitted[new_name] = identity
        self._names[identity] = new_name

    def forget(self, name: str) -> None:
        """Makes `name` unused."""
        identity = self._admitted.pop(name, None)
        self._received_from.pop(name, None)
        if identity is not None:
            self._names.pop(identity, None)

    def receive(self, from_anybody: Any = object) -> Iterator[tuple[str, T]]:
        """Yields (name, message) for each message that has arrived. Never waits.

        If a process was admitted under a name, messages of others with that name are dropped, except of the type
        `from_anybody`.
        """
        for identity, message in self._receive():
            name = self._names.get(identity) or identity.rpartition(b".")[0].decode(errors="replace")
            if self._admitted.get(name, identity) != identity and not isinstance(message, from_anybody):
                continue
            self._received_from[name] = identity
            yield name, message


class AskServer(_Server[T]):
    """Answers questions from any process that may open the socket. `union` is the union of the questions."""

    def receive(self) -> Iterator[tuple[bytes, T]]:
        """Yields (connection, question) for each question that has arrived. Never waits."""
        return self._receive()


class Readable(Protocol):
    """A channel that can receive."""

    socket: "zmq.Socket[bytes]"


class Waiter:
    """Waits for its channels and descriptors, with a timeout."""

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
        """Blocks until a channel or descriptor is readable. Returns the readable descriptors."""
        self._ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        return {item for item, _ in self._ready if isinstance(item, int)}

    def has_found(self, channel: Readable) -> bool:
        """True if the last `wait` found this channel readable."""
        for item, _ in self._ready:  # noqa: SIM110 (a third of the time of `any`; this runs once a step)
            if item is channel.socket:
                return True
        return False


def has_arrived(socket: "zmq.Socket[bytes]") -> bool:
    """True if `recv` would return a frame. Takes a third of the time of a `recv` that raises `zmq.Again`."""
    return bool(cast("int", socket.get(EVENTS)) & POLLIN)


def _identity(name: str, pid: int) -> bytes:
    """Unique per process: a second one with the same name must not take over the first one's connection."""
    return f"{name}.{pid}".encode()


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes | memoryview, path: Path) -> T | None:
    try:
        return decoder.decode(frame)
    except msgspec.DecodeError as error:
        text = "%s: dropped a frame of %d bytes that does not decode: %s (pid %d)"
        log.error(text, path, len(frame), error, os.getpid())
        return None
