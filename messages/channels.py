"""ZeroMQ, and nothing else of it anywhere: typed one-way channels for requests, a two-way one for control.

The receiver binds, senders connect. A frame that does not decode is a bug between our own processes: it is logged with
its path and dropped.
"""

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from messages.errors import ChannelFullError

T = TypeVar("T")

MAX_QUEUED_FRAMES = 100_000
"""Frames a channel holds for a receiver that does not read. A step is one frame, so this is minutes of steps."""

RECONNECT_INTERVAL_MS = 20
"""How often a sender looks for a receiver that is not there (yet, or because it is being replaced): a try is one system
call, and what waits in the channel reaches the receiver by so much later."""

log = logging.getLogger("sluice.channels")


def _make_socket(kind: int) -> "zmq.Socket[bytes]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()  # pyright: ignore[reportUnknownVariableType]
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
    return socket


class Receiver(Generic[T]):
    """The one reader of a channel; `union` is the tagged union of what may arrive."""

    def __init__(self, path: Path, union: Any):
        self.path = path
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.PULL)
        path.unlink(missing_ok=True)
        self.socket.bind(f"ipc://{path}")

    def fileno(self) -> int:
        """A descriptor that becomes readable when something arrives (edge-triggered: then `take` until empty)."""
        return int(self.socket.getsockopt(zmq.FD))

    def take(self, limit: int = 1024) -> Iterator[T]:
        """Iterates over what has arrived, at most `limit` messages, and never waits."""
        return _take(self.socket, self._decoder, self.path, limit)

    def close(self) -> None:
        self.socket.close()


class Sender(Generic[T]):
    """One of the writers of a channel."""

    def __init__(self, path: Path):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self.socket = _make_socket(zmq.PUSH)
        self.socket.connect(f"ipc://{path}")

    def send(self, message: T) -> None:
        """Queues `message` and returns at once. Raises `ChannelFullError` where the receiver has stopped reading."""
        try:
            self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise ChannelFullError(f"{self.path}: {MAX_QUEUED_FRAMES} messages are waiting to be read") from None

    def close(self) -> None:
        """Closes the channel after at most 0.2 s in which queued messages may still leave."""
        self.socket.close(linger=200)


class ControlClient(Generic[T]):
    """A process's end of the control plane. `union` is what the launcher may send."""

    def __init__(self, path: Path, name: str, union: Any):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.DEALER)
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

    def take(self) -> Iterator[T]:
        """Iterates over what has arrived and never waits."""
        return _take(self.socket, self._decoder, self.path, MAX_QUEUED_FRAMES)

    def close(self) -> None:
        """Closes after at most 0.5 s in which the last reports may still leave."""
        self.socket.close(linger=500)


class ControlServer(Generic[T]):
    """The launcher's end of the control plane; `union` is what processes may send.

    Processes are told apart by name. Of two under one name the admitted one is meant, or else the one heard last.
    """

    def __init__(self, path: Path, union: Any):
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self.socket = _make_socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._admitted: dict[str, bytes] = {}
        self._heard: dict[str, bytes] = {}
        path.unlink(missing_ok=True)
        self.socket.bind(f"ipc://{path}")

    def fileno(self) -> int:
        return int(self.socket.getsockopt(zmq.FD))

    def send(self, name: str, message: Any) -> None:
        """Queues `message` for process `name`; it is dropped where that process is not connected."""
        identity = self._admitted.get(name) or self._heard.get(name) or name.encode()
        self.socket.send_multipart([identity, self._encoder.encode(message)], zmq.NOBLOCK)

    def admit(self, name: str, pid: int) -> None:
        """Lets `name` mean the process `pid` from now on, whoever else calls itself so."""
        self._admitted[name] = _identity(name, pid)

    def send_to_pid(self, name: str, pid: int, message: Any) -> None:
        """Queues `message` for the process `pid` that calls itself `name`, admitted or not."""
        self.socket.send_multipart([_identity(name, pid), self._encoder.encode(message)], zmq.NOBLOCK)

    def take(self) -> Iterator[tuple[str, T]]:
        """Yields (name, message) of what has arrived and never waits."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = _decode(self._decoder, frames[-1], self.path)
            if message is not None:
                name = frames[0].rpartition(b".")[0].decode(errors="replace")
                self._heard[name] = frames[0]
                yield name, message

    def close(self) -> None:
        """Closes after at most 0.2 s in which queued messages may still leave."""
        self.socket.close(linger=200)


Readable = Receiver[Any] | ControlClient[Any] | ControlServer[Any]


class Waiter:
    """Blocks until one of its channels or descriptors has something, or a time is over."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add_channel(self, channel: Readable) -> None:
        self._poller.register(channel.socket, zmq.POLLIN)

    def add_descriptor(self, descriptor: int) -> None:
        self._poller.register(descriptor, zmq.POLLIN)

    def remove_descriptor(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def wait(self, timeout_s: float) -> set[int]:
        """Returns the readable plain descriptors; messages are then taken from the channels."""
        ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        return {item for item, _ in ready if isinstance(item, int)}


def _identity(name: str, pid: int) -> bytes:
    """Unique for each process: a second one under a name must not take over the first one's connection."""
    return f"{name}.{pid}".encode()


def _take(socket: "zmq.Socket[bytes]", decoder: "msgspec.msgpack.Decoder[T]", path: Path, limit: int) -> Iterator[T]:
    for _ in range(limit):
        try:
            frame = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return
        message = _decode(decoder, frame, path)
        if message is not None:
            yield message


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes, path: Path) -> T | None:
    try:
        return decoder.decode(frame)
    except msgspec.DecodeError as error:
        log.error(
            "%s: dropped a frame of %d bytes that does not decode: %s (pid %d)",
            path,
            len(frame),
            error,
            os.getpid(),
        )
        return None
