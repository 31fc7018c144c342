import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.channels import Receiver, Sender, Waiter
from messages.control.admin import StartProfile, StopProfile
from messages.errors import SluiceError
from messages.ring.requests import StopSeen, ToScheduler
from runtime.profiling import Part, ProcessProfile, ProcessProfiler
from runtime.run_dir import RunDir

TIMEOUT_S = 90.0


class Loop:
    """A main loop that receives messages and works."""

    def __init__(self, run_dir: RunDir):
        self.profiler = ProcessProfiler("scheduler", run_dir)
        self.profiler.loop = self
        self.profiler.parts.append(Part(self, "work", lambda number: f"work {number}"))
        self.sender: Sender[Any] = Sender(run_dir.socket("scheduler"))
        self.receiver: Receiver[Any] = Receiver(run_dir.socket("scheduler"), ToScheduler)
        self.profiler.senders.append(self.sender)
        self.profiler.receivers.append(self.receiver)
        self._waiter = Waiter()
        self._waiter.add_channel(self.receiver)
        self.spans_ns: list[tuple[int, int]] = []

    def receive_control(self) -> None:
        pass

    def wait(self) -> None:
        self._waiter.wait(TIMEOUT_S)

    def work(self, number: int) -> None:
        began_ns = time.monotonic_ns()
        spin(5)
        self.spans_ns.append((began_ns, time.monotonic_ns()))

    def turn(self, number: int) -> None:
        self.sender.send(StopSeen(number, 0))
        self.wait()
        self.receive_control()
        for message in self.receiver.receive():
            self.work(message.uid)

    def read_profile(self, path: str) -> ProcessProfile:
        deadline = time.monotonic() + TIMEOUT_S
        while not Path(path).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return msgspec.msgpack.decode(Path(path).read_bytes(), type=ProcessProfile)


def spin(milliseconds: float) -> None:
    end_ns = time.monotonic_ns() + int(milliseconds * 1e6)
    while time.monotonic_ns() < end_ns:
        pass


@pytest.fixture
def loop() -> Iterator[Loop]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        loop = Loop(RunDir(Path(directory)))
        yield loop
        loop.sender.close()
        loop.receiver.close()


def test_a_profile_has_turns_parts_and_frames_and_none_of_it_stays(loop: Loop):
    plain = [dict(vars(one)) for one in (loop.sender, loop.receiver, loop.receiver.arrivals)]
    loop.turn(1)
    loop.profiler.start(StartProfile())
    for number in (2, 3):
        loop.turn(number)
    loop.receive_control()
    result = loop.profiler.stop(StopProfile())
    loop.turn(4)
    profile = loop.read_profile(result.text)
    assert [name for name, _, _ in profile.slices] == ["work 2", "turn", "work 3", "turn"]
    (sent,) = profile.sent.values()
    assert [record[0] for record in sent] == ["StopSeen uid 2", "StopSeen uid 3"]
    assert (
        [record[3:] for record in sent]
        == [record[3:] for record in profile.received]
        == [(loop.sender.sender_id, n) for n in (2, 3)]
    )
    assert [record[0] for record in profile.received] == ["StopSeen uid 2", "StopSeen uid 3"]
    after = [dict(vars(one)) for one in (loop.sender, loop.receiver, loop.receiver.arrivals)]
    assert [set(attributes) for attributes in after] == [set(attributes) for attributes in plain]
    assert not {"receive_control", "wait", "work"} & set(vars(loop))


def test_records_and_samples_are_on_one_clock(loop: Loop):
    loop.profiler.start(StartProfile())
    for number in range(10):
        loop.turn(number)
        spin(3)
    profile = loop.read_profile(loop.profiler.stop(StopProfile()).text)
    works = [(began, ended) for name, began, ended in profile.slices if name.startswith("work")]
    late_ns: list[int] = []
    for (began, ended), (true_began, true_ended) in zip(works, loop.spans_ns, strict=True):
        assert began <= true_began <= true_ended <= ended
        late_ns += [true_began - began, ended - true_ended]
    assert statistics.median(late_ns) < 50_000_000, "most, for the machine may be busy between two looks at the clock"
    distances_ns: list[int] = []
    at_ns = profile.samples_began_ns
    for stack, span_ns in profile.samples:
        at_ns += span_ns
        if any(frame.startswith("work\0") for frame in stack):
            distances_ns.append(min(max(0, began - at_ns, at_ns - ended) for began, ended in loop.spans_ns))
    assert len(distances_ns) >= 10
    assert statistics.median(distances_ns) < 50_000_000, "a busy machine may stop the process between sample and clock"


def test_one_profile_at_a_time(loop: Loop):
    with pytest.raises(SluiceError, match="no profile is running"):
        loop.profiler.stop(StopProfile())
    loop.profiler.start(StartProfile())
    with pytest.raises(SluiceError, match="already running"):
        loop.profiler.start(StartProfile())
    loop.read_profile(loop.profiler.stop(StopProfile()).text)
