import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import messages.channels
from messages.channels import ControlClient, ControlServer, Receiver, Sender, Waiter
from messages.control.processes import Beat, Hello, Ready, Refusal, Stop, ToLauncher, ToProcess, Welcome
from messages.errors import ChannelFullError
from messages.ring.replies import OpenStream, ToDetokenizer
from messages.ring.requests import AbortMsg, DropBefore, FramesLost, StopSeen, ToScheduler

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 90.0


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        yield Path(directory) / "x.sock"


def take(channel: Any, num_requested: int) -> list[Any]:
    """Takes messages until there are `num_requested`. Fails at the deadline."""
    waiter = Waiter()
    waiter.add_channel(channel)
    found: list[Any] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < num_requested:
        assert time.monotonic() < deadline, f"only {found}"
        waiter.wait(1.0)
        found += channel.receive()
    return found


def test_messages_of_several_senders_arrive_each_in_order(socket_path: Path):
    senders: list[Sender[Any]] = [Sender(socket_path), Sender(socket_path)]
    receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
    for uid in range(100):
        for number, sender in enumerate(senders):
            sender.send(AbortMsg(uid, number))
    found = take(receiver, 200)
    for number in (0, 1):
        assert [message.uid for message in found if message.attempt == number] == list(range(100))
    assert list(receiver.receive()) == []
    for channel in (*senders, receiver):
        channel.close()


def test_take_yields_at_most_its_limit(socket_path: Path):
    receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
    sender: Sender[Any] = Sender(socket_path)
    for uid in range(10):
        sender.send(StopSeen(uid, 0))
    waiter = Waiter()
    waiter.add_channel(receiver)
    waiter.wait(TIMEOUT_S)
    assert len(list(receiver.receive(limit=1))) == 1
    assert [message.uid for message in take(receiver, 9)] == list(range(1, 10))
    sender.close()
    receiver.close()


def test_a_frame_that_does_not_decode_is_logged_and_dropped(socket_path: Path, caplog: pytest.LogCaptureFixture):
    receiver: Receiver[Any] = Receiver(socket_path, ToDetokenizer)
    sender: Sender[Any] = Sender(socket_path)
    sender.socket.send(b"\xc1 no message")
    sender.send(StopSeen(2, 0))
    sender.send(OpenStream(3, 0))
    with caplog.at_level(logging.ERROR):
        assert take(receiver, 2) == [FramesLost("x", sender.sender_id, 1, 1), OpenStream(3, 0)]
    assert len(caplog.records) == 3
    assert str(socket_path) in caplog.text
    sender.close()
    receiver.close()


def test_a_frame_that_comes_twice_is_taken_once(socket_path: Path, monkeypatch: pytest.MonkeyPatch):
    receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
    sender: Sender[Any] = Sender(socket_path)
    put = sender._put
    monkeypatch.setattr(sender, "_put", lambda frame: (put(frame), put(frame)))
    for uid in range(3):
        sender.send(StopSeen(uid, 0))
    monkeypatch.undo()
    sender.send(DropBefore(9))
    assert take(receiver, 4) == [StopSeen(0, 0), StopSeen(1, 0), StopSeen(2, 0), DropBefore(9)]
    sender.close()
    receiver.close()


def test_in_the_place_of_lost_frames_the_receiver_takes_word_of_it(socket_path: Path, monkeypatch: pytest.MonkeyPatch):
    receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
    sender, other = Sender[Any](socket_path), Sender[Any](socket_path)
    sender.send(StopSeen(1, 0))
    other.send(StopSeen(1, 1))
    take(receiver, 2)
    with monkeypatch.context() as patch:
        patch.setattr(sender, "_put", lambda frame: None)
        sender.send(StopSeen(2, 0))
        sender.send(StopSeen(3, 0))
    other.send(StopSeen(2, 1))
    assert take(receiver, 1) == [StopSeen(2, 1)]
    sender.send(StopSeen(4, 0))
    assert take(receiver, 2) == [FramesLost("x", sender.sender_id, 2, 3), StopSeen(4, 0)]
    sender.num_sent += 1
    sender.send(StopSeen(6, 0))
    waiter = Waiter()
    waiter.add_channel(receiver)
    waiter.wait(TIMEOUT_S)
    assert next(receiver.receive(limit=1)) == FramesLost("x", sender.sender_id, 5, 5)
    assert list(receiver.receive(limit=1)) == [StopSeen(6, 0)], "who takes one message at a time loses none"
    assert receiver.arrivals.received == {sender.sender_id: (1, 6), other.sender_id: (1, 2)}
    for channel in (sender, other, receiver):
        channel.close()


def test_a_message_that_found_no_room_is_missed_by_the_receiver(socket_path: Path, monkeypatch: pytest.MonkeyPatch):
    def find_no_room(frame: bytes) -> None:
        raise zmq.Again

    sender: Sender[Any] = Sender(socket_path)
    receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
    sender.send(StopSeen(1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(sender, "_put", find_no_room)
        with pytest.raises(ChannelFullError):
            sender.send(StopSeen(2, 0))
    sender.send(StopSeen(3, 0))
    assert take(receiver, 3) == [StopSeen(1, 0), FramesLost("x", sender.sender_id, 2, 2), StopSeen(3, 0)]
    sender.close()
    receiver.close()


def test_a_full_channel_is_an_error_for_the_sender(socket_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages.channels, "MAX_QUEUED_FRAMES", 5)
    sender: Sender[Any] = Sender(socket_path)
    for uid in range(5):
        sender.send(StopSeen(uid, 0))
    with pytest.raises(ChannelFullError, match=r"x\.sock: 5 messages are waiting"):
        sender.send(StopSeen(5, 0))
    sender.close()


def test_what_finds_no_room_is_dropped_and_reported_once(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(messages.channels, "MAX_QUEUED_FRAMES", 5)
    sender: Sender[Any] = Sender(socket_path)
    for uid in range(8):
        sender.send_or_drop(StopSeen(uid, 0))
    receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
    assert take(receiver, 5) == [StopSeen(uid, 0) for uid in range(5)]
    assert sender.socket.poll(int(1000 * TIMEOUT_S), zmq.POLLOUT), "ZeroMQ's own threads make room, in their time"
    sender.send_or_drop(StopSeen(8, 0))
    assert take(receiver, 2) == [FramesLost("x", sender.sender_id, 6, 8), StopSeen(8, 0)]
    reported = [record.getMessage() for record in caplog.records if record.name == "sluice.channels"]
    assert reported[0].startswith("dropped StopSeen and the messages after it: ")
    assert reported[1].endswith("the receiver reads again; 3 messages were dropped")
    sender.close()
    receiver.close()


def test_what_is_sent_while_a_receiver_is_replaced_reaches_the_next_one(socket_path: Path):
    sender: Sender[Any] = Sender(socket_path)
    old: Receiver[Any] = Receiver(socket_path, ToScheduler)
    sender.send(DropBefore(1))
    assert take(old, 1) == [DropBefore(1)]
    monitor = sender.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    old.close()
    assert monitor.poll(int(1000 * TIMEOUT_S)), "the sender did not notice"
    sender.socket.disable_monitor()
    monitor.close()
    for uid in (2, 3):
        sender.send(DropBefore(uid))
    new: Receiver[Any] = Receiver(socket_path, ToScheduler)
    assert take(new, 2) == [DropBefore(2), DropBefore(3)]
    for channel in (sender, new):
        channel.close()


def test_the_launcher_reports_processes_apart_and_answers_each(socket_path: Path):
    server: ControlServer[Any] = ControlServer(socket_path, ToLauncher)
    clients = {name: ControlClient(socket_path, name, ToProcess) for name in ("tokenizer", "scheduler")}
    for pid, (name, client) in enumerate(clients.items()):
        client.send(Hello(name, pid, 1))
        client.send(Ready())
    found = take(server, 4)
    assert [message for name, message in found if name == "scheduler"] == [Hello("scheduler", 1, 1), Ready()]
    server.send("scheduler", Welcome(3))
    server.send("tokenizer", Stop())
    server.send("nobody", Stop())
    assert take(clients["scheduler"], 1) == [Welcome(3)]
    assert take(clients["tokenizer"], 1) == [Stop()]
    for channel in (*clients.values(), server):
        channel.close()


def test_a_new_process_takes_over_the_name_of_one_that_died(socket_path: Path):
    server: ControlServer[Any] = ControlServer(socket_path, ToLauncher)
    old = ControlClient[Any](socket_path, "scheduler", ToProcess)
    old.send(Ready())
    take(server, 1)
    old.close()
    new = ControlClient[Any](socket_path, "scheduler", ToProcess)
    new.send(Beat(5))
    assert take(server, 1) == [("scheduler", Beat(5))]
    server.send("scheduler", Stop())
    assert take(new, 1) == [Stop()]
    new.close()
    server.close()


def test_a_process_that_takes_the_name_of_an_admitted_one_gets_its_own_answer_and_does_no_harm(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server: ControlServer[Any] = ControlServer(socket_path, ToLauncher)
    admitted = ControlClient[Any](socket_path, "scheduler", ToProcess)
    admitted.send(Ready())
    take(server, 1)
    server.admit("scheduler", os.getpid())
    with monkeypatch.context() as patch:
        patch.setattr(messages.channels, "_identity", lambda name, pid: b"scheduler.77")
        second = ControlClient[Any](socket_path, "scheduler", ToProcess)
    second.send(Hello("scheduler", 77, 1))
    assert take(server, 1) == [("scheduler", Hello("scheduler", 77, 1))]
    server.send_to_pid("scheduler", 77, Refusal("one is enough"))
    server.send("scheduler", Stop())
    assert take(second, 1) == [Refusal("one is enough")]
    assert take(admitted, 1) == [Stop()]
    admitted.send(Ready())
    assert take(server, 1) == [("scheduler", Ready())]
    for channel in (admitted, second, server):
        channel.close()


def test_a_client_without_a_launcher_that_reads_drops_and_continues(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(messages.channels, "MAX_QUEUED_FRAMES", 5)
    client = ControlClient[Any](socket_path, "scheduler", ToProcess)
    for _ in range(10):
        client.send(Ready())
    assert "the launcher is not reading, dropped Ready" in caplog.text
    client.close()


def test_the_waiter_reports_which_descriptors_are_readable_and_when_time_is_over(socket_path: Path):
    server: ControlServer[Any] = ControlServer(socket_path, ToLauncher)
    reader, writer = os.pipe()
    waiter = Waiter()
    waiter.add_channel(server)
    waiter.add_descriptor(reader)
    assert waiter.wait(0.0) == set()
    timer = threading.Timer(0.05, os.write, (writer, b"x"))
    timer.start()
    assert waiter.wait(TIMEOUT_S) == {reader}
    waiter.remove_descriptor(reader)
    assert waiter.wait(0.01) == set()
    timer.join()
    os.close(reader)
    os.close(writer)
    server.close()


LAST_WORDS = """
import sys
from pathlib import Path
from messages.channels import Sender
from messages.ring.requests import StopSeen
sender = Sender(Path(sys.argv[1]))
sender.send(StopSeen(1, 0))
sender.close()
print("leaves", flush=True)
"""
NUM_TRIES = 10
LATE_S = 0.08


def test_what_a_process_reports_last_is_received_by_who_comes_late(socket_path: Path):
    """The sender is closed before the receiver reads. On a busy machine that may be too late, so it may try again."""
    for _ in range(NUM_TRIES):
        command = [sys.executable, "-c", LAST_WORDS, str(socket_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"leaves\n"
            time.sleep(LATE_S)  # longer than an exit that does not wait
            receiver: Receiver[Any] = Receiver(socket_path, ToScheduler)
            assert process.wait(TIMEOUT_S) == 0
        waiter = Waiter()
        waiter.add_channel(receiver)
        waiter.wait(1.0)
        arrived = list(receiver.receive())
        receiver.close()
        if arrived:
            assert arrived == [StopSeen(1, 0)]
            return
    pytest.fail(f"nothing was heard in {NUM_TRIES} tries")
