"""The channel between machines: who has the keys of the run is let in, and each end notices that the other is gone."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from extras.remote.join_keys import HeadKeys, JoinKeys, check_address, make_keys
from extras.remote.messages import EngineFrame, Join, Probe, ToJoiner, ToProxy, TurnedAway
from extras.remote.secure_channels import MAX_CONNECTIONS, PART_BYTES, HeadChannel, JoinerChannel
from messages.errors import BootError, UsageError
from tests.free_port import find_free_port

LIMIT_S = 60.0
JOIN = Join(1, "release", "host")


def wait_for(look: Callable[[], Any]) -> Any:
    """Returns the first true result of `look`."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        found = look()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"nothing within {LIMIT_S} s")


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{find_free_port()}"


@pytest.fixture
def keys() -> tuple[HeadKeys, JoinKeys]:
    return make_keys()


@pytest.fixture
def head(address: str, keys: tuple[HeadKeys, JoinKeys]) -> Iterator[HeadChannel[Any]]:
    channel: HeadChannel[Any] = HeadChannel(address, keys[0], ToProxy)
    yield channel
    channel.close()


def trouble_of(address: str, keys: JoinKeys) -> tuple[str, bool]:
    """Returns what becomes of a connection with these keys, and whether trying again is of no use."""
    joiner: JoinerChannel[Any] = JoinerChannel(address, keys, ToJoiner)
    joiner.send(JOIN)
    try:
        return wait_for(joiner.monitor.look), joiner.monitor.is_refused
    finally:
        joiner.close()


def test_both_ends_receive_each_other_and_notice_when_the_other_is_gone(
    address: str, keys: tuple[HeadKeys, JoinKeys], head: HeadChannel[Any]
):
    joiner: JoinerChannel[Any] = JoinerChannel(address, keys[1], ToJoiner)
    joiner.send(JOIN)
    peer, message = wait_for(lambda: next(head.receive(), None))
    assert message == JOIN
    assert head.send(peer, TurnedAway("full"))
    assert wait_for(lambda: next(joiner.receive(), None)) == TurnedAway("full")
    assert joiner.monitor.look() == ""
    joiner.close()
    wait_for(lambda: not head.send(peer, Probe()))


def test_a_joiner_notices_that_the_head_is_gone(address: str, keys: tuple[HeadKeys, JoinKeys]):
    head: HeadChannel[Any] = HeadChannel(address, keys[0], ToProxy)
    joiner: JoinerChannel[Any] = JoinerChannel(address, keys[1], ToJoiner)
    joiner.send(JOIN)
    wait_for(lambda: next(head.receive(), None))
    head.close()
    assert wait_for(joiner.monitor.look) == "the connection is lost"
    assert not joiner.monitor.is_refused
    joiner.close()


def test_unknown_keys_are_refused_on_either_side(address: str, keys: tuple[HeadKeys, JoinKeys], head: HeadChannel[Any]):
    good, (_, other) = keys[1], make_keys()
    for bad in (
        JoinKeys(good.head_public, other.public, other.secret),
        JoinKeys(other.head_public, good.public, good.secret),
    ):
        trouble, is_refused = trouble_of(address, bad)
        assert is_refused
        assert "does not know this key" in trouble
    assert list(head.receive()) == [], "nothing of theirs is heard"


def test_an_address_where_no_one_listens(address: str, keys: tuple[HeadKeys, JoinKeys]):
    assert trouble_of(address, keys[1]) == ("nothing answers there", False)


def test_a_port_in_use_is_notified(address: str, keys: tuple[HeadKeys, JoinKeys], head: HeadChannel[Any]):
    with pytest.raises(BootError, match=f"{address} cannot be listened at: the port is in use"):
        HeadChannel(address, keys[0], ToProxy)


@pytest.mark.parametrize(
    "address", ["host:1", "tcp://host", "tcp://:1", "tcp://host:0", "tcp://host:99999", "ipc:///x"]
)
def test_what_is_no_address(address: str):
    with pytest.raises(UsageError, match="give it as tcp://HOST:PORT"):
        check_address("--remote-engines", address)
    check_address("--remote-engines", "tcp://[::1]:80")


def test_a_large_message_goes_both_ways(address: str, keys: tuple[HeadKeys, JoinKeys], head: HeadChannel[Any]):
    joiner: JoinerChannel[Any] = JoinerChannel(address, keys[1], ToJoiner)
    there, back = EngineFrame(bytes(range(256)) * 20_000), EngineFrame(b"x" * PART_BYTES)
    joiner.send(there)
    peer, message = wait_for(lambda: next(head.receive(), None))
    assert message == there
    assert head.send(peer, back)
    assert wait_for(lambda: next(joiner.receive(), None)) == back
    joiner.close()


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""ZMTP 3.0 (RFC 23)."""


def connect(address: str) -> socket.socket:
    stranger = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), LIMIT_S)
    stranger.settimeout(LIMIT_S)
    return stranger


def test_what_a_stranger_sends_is_not_kept(address: str, head: HeadChannel[Any]):
    """It has shown no key, and announces a command of 300 MB."""
    with connect(address) as stranger:
        stranger.sendall(GREETING + b"\x06" + (300 << 20).to_bytes(8, "big"))
        with pytest.raises(ConnectionError):  # noqa: PT012 (one of these)
            for _ in range(300):
                stranger.sendall(bytes(1 << 20))
            raise AssertionError("all of it was read")


def test_a_stranger_has_seconds_to_show_a_key(head: HeadChannel[Any]):
    assert 0 < int(head.socket.getsockopt(zmq.HANDSHAKE_IVL)) <= 10_000


def test_only_so_many_strangers_stay_connected(address: str, keys: tuple[HeadKeys, JoinKeys], head: HeadChannel[Any]):
    joiner: JoinerChannel[Any] = JoinerChannel(address, keys[1], ToJoiner)
    joiner.send(JOIN)
    peer, _ = wait_for(lambda: next(head.receive(), None))
    strangers = [connect(address) for _ in range(MAX_CONNECTIONS + 36)]

    ended: set[socket.socket] = set()

    def are_ended() -> bool:
        assert list(head.receive()) == []
        for stranger in select.select(strangers, [], [], 0)[0]:
            if not stranger.recv(4096):  # the beginning of a greeting comes at once
                ended.add(stranger)
        return len(ended) >= 37

    wait_for(are_ended)
    assert head.send(peer, Probe()), "the one that has joined stays"
    assert wait_for(lambda: next(joiner.receive(), None)) == Probe()
    for stranger in strangers:
        stranger.close()
    joiner.close()
