"""The channel between machines: ZeroMQ over tcp, encrypted and authenticated with CURVE keys that a run makes.

The head is identified by its key, and it accepts only peers with the run's client key (`zmq_curve(7)`, RFC 27).
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.auth.thread
from zmq.utils.monitor import parse_monitor_message

from extras.remote.join_keys import HeadKeys, JoinKeys
from messages.channels import MAX_QUEUED_FRAMES, has_arrived
from messages.errors import BootError

T = TypeVar("T")

HEARTBEAT_MS, SILENCE_MS = 2_000, 15_000
"""ZeroMQ's threads send a heartbeat at this interval; a peer without one for the timeout has lost its connection."""

PART_BYTES, ENVELOPE_BYTES = 64 * 1024, 1024
"""A message is sent in parts of this size, encrypted in an envelope. ZeroMQ reads a part into memory before it has
authenticated the sender, so a larger part ends the connection."""

HANDSHAKE_MS = 10_000
"""The time limit for a peer to present its key; then it is disconnected."""

MAX_CONNECTIONS = 64

LAST_WORDS_MS = 500
"""The time for the last messages to leave a closed end."""


class _Credentials:
    def __init__(self, public: str):
        self._public = public.encode()

    def callback(self, domain: str, key: bytes) -> bool:  # the name and parameters are pyzmq's
        return key == self._public


class HeadChannel(Generic[T]):
    """The head's end, to which any number of joiners may connect; `union` has the messages that they may send.

    Raises `BootError` if `address` cannot be bound.
    """

    def __init__(self, address: str, keys: HeadKeys, union: Any):
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _Credentials(keys.join_public))
        self.socket = _make_socket(self._context, zmq.ROUTER, keys.public, keys.secret)
        self.socket.curve_server = True
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.connections = Connections(self.socket)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            reason = "the port is in use" if error.errno == zmq.EADDRINUSE else zmq.strerror(error.errno or 0)
            raise BootError(f"{address} cannot be listened at: {reason}; choose another port") from None

    @property
    def port(self) -> int:
        """The port on which it listens, chosen by the system if the address has `*`."""
        return _port_of(self.socket)

    def receive(self) -> Iterator[tuple[bytes, T]]:
        """Yields (connection, message) for the queued messages and never waits; drops those that do not decode."""
        self.connections.limit()
        while has_arrived(self.socket):
            peer, *parts = self.socket.recv_multipart(zmq.NOBLOCK)
            with contextlib.suppress(msgspec.DecodeError):
                yield peer, self._decoder.decode(b"".join(parts))

    def send(self, peer: bytes, message: Any) -> bool:
        """Queues `message`, or drops it if the peer reads too slowly; returns whether the connection still exists."""
        try:
            self.socket.send_multipart([peer, *_parts_of(self._encoder.encode(message))], zmq.NOBLOCK)
        except zmq.Again:
            return True  # the number of the next frame shows its receiver that some are missing
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self) -> None:
        """Closes after at most 0.5 s in which the last messages may still leave."""
        self.connections.close()
        self.socket.close(linger=LAST_WORDS_MS)
        self._authenticator.stop()
        self._context.term()


class Connections:
    """Keeps at most `MAX_CONNECTIONS` connections to a listening socket open, authenticated or not."""

    def __init__(self, observed: "zmq.Socket[bytes]"):
        self._observed = observed
        self.socket = observed.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._open: set[int] = set()

    def limit(self) -> None:
        """Ends the newest connections beyond the limit. Call it when a message has arrived at `self.socket`."""
        while has_arrived(self.socket):
            event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._open.discard(event["value"])
                continue
            self._open.add(event["value"])
            if len(self._open) > MAX_CONNECTIONS:
                self._end(event["value"])

    def _end(self, descriptor: int) -> None:
        """Shuts the connection down; ZeroMQ then closes it. The descriptor may belong to another file by now."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getsockname()[1] == _port_of(self._observed):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._observed.disable_monitor()
        self.socket.close(linger=0)


class JoinerChannel(Generic[T]):
    """A joiner's end: one connection, not restored when it is lost. `union` has the messages that the head may send."""

    def __init__(self, address: str, keys: JoinKeys, union: Any):
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = _make_socket(self._context, zmq.DEALER, keys.public, keys.secret)
        self.socket.curve_serverkey = keys.head_public.encode()
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.monitor = Monitor(self.socket)
        self.socket.connect(address)

    def send(self, message: Any) -> None:
        """Queues `message`. It is dropped if the connection is lost, which `monitor` reports."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(_parts_of(self._encoder.encode(message)), zmq.NOBLOCK)

    def receive(self) -> Iterator[T]:
        """Yields the queued messages and never waits. Raises `msgspec.DecodeError`."""
        while has_arrived(self.socket):
            yield self._decoder.decode(b"".join(self.socket.recv_multipart(zmq.NOBLOCK)))

    def close(self) -> None:
        """Closes after at most 0.5 s in which the last messages may still leave."""
        self.monitor.close()
        self.socket.close(linger=LAST_WORDS_MS)
        self._context.term()


class Monitor:
    """The state of a joiner's connection. `trouble` describes an error for the operator, and is empty otherwise."""

    def __init__(self, socket: "zmq.Socket[bytes]"):
        self._observed = socket
        self.socket = socket.get_monitor_socket()
        self.trouble = ""
        self.is_refused = False
        """The other end has different keys, or has ended before it answered."""
        self._has_connected = self._is_open = False

    def look(self) -> str:
        """Returns the current `trouble`."""
        while not self.trouble and has_arrived(self.socket):
            event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))["event"]
            if event == zmq.EVENT_CONNECTED:
                self._has_connected = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_open = True
            elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED, *HANDSHAKE_FAILURES):
                self._record_end()
        return self.trouble

    def _record_end(self) -> None:
        self.is_refused = self._has_connected and not self._is_open
        if self._is_open:
            self.trouble = "the connection is lost"
        elif self.is_refused:
            self.trouble = "the head does not know this key: copy join.key again, each run of the head makes a new one"
        else:
            self.trouble = "nothing answers there"

    def close(self) -> None:
        self._observed.disable_monitor()
        self.socket.close(linger=0)


HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
)


def _make_socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, public: str, secret: str) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.curve_publickey, socket.curve_secretkey = public.encode(), secret.encode()
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES + ENVELOPE_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def _port_of(bound: "zmq.Socket[bytes]") -> int:
    return int(bound.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def _parts_of(message: bytes) -> list[bytes]:
    return [message[begin : begin + PART_BYTES] for begin in range(0, len(message), PART_BYTES)]
