import errno
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runtime.process
from messages.channels import ControlServer, Receiver, Sender, Waiter
from messages.config.server import Config, ModelFacts
from messages.control.histograms import HistogramCounts
from messages.control.processes import (
    Beat,
    BootFailed,
    Drain,
    Drained,
    Hello,
    PhaseReport,
    ProcessTable,
    Ready,
    Refusal,
    Stop,
    ToLauncher,
    Welcome,
)
from messages.errors import BootError
from messages.ring.requests import StopSeen, ToScheduler
from messages.schema import SCHEMA_VERSION
from runtime.lifeline import GRACE_S, make_lifeline
from runtime.process import ProcessLink, run_process
from runtime.run_dir import RunDir, claim

FACTS = ModelFacts(model_dir="/m", tokenizer_dir="/m", served_names=("m",), vocab_size=1, max_model_len=2)
TIMEOUT_S = 90.0


class Launcher:
    """The launcher's side of one run directory, with its answers to `Hello` from a thread."""

    def __init__(self, path: Path):
        self.run_dir, self._lock = claim(path)
        self.run_dir.write_config(Config(facts=FACTS))
        self.lifeline = make_lifeline(self.run_dir)
        self.control: ControlServer[Any] = ControlServer(self.run_dir.socket("launcher"), ToLauncher)
        self._waiter = Waiter()
        self._waiter.add_channel(self.control)
        self._taken: list[Any] = []

    def next(self) -> Any:
        """Returns the next message of any process. Fails at the deadline."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self._taken:
            assert time.monotonic() < deadline
            self._waiter.wait(0.5)
            self._taken += [message for _, message in self.control.receive()]
        return self._taken.pop(0)

    def connect(self, answer: Any = None) -> ProcessLink:
        """Returns the link of a scheduler whose hello gets `answer`, by default a welcome."""
        answering = threading.Thread(target=self._answer, args=(answer or Welcome(7),))
        answering.start()
        try:
            return ProcessLink("scheduler", self.run_dir)
        finally:
            answering.join()

    def _answer(self, answer: Any) -> None:
        assert self.next() == Hello("scheduler", os.getpid(), SCHEMA_VERSION)
        self.control.send("scheduler", answer)

    def close(self) -> None:
        """Leaves the lifeline open: at its end of file, the guards of the links would kill this process."""
        self.control.close()
        self.run_dir.remove()
        os.close(self._lock)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        launcher = Launcher(Path(directory) / "run")
        yield launcher
        launcher.close()


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    old = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGTERM, old[0])
    signal.signal(signal.SIGINT, old[1])
    signal.set_wakeup_fd(-1)


def wait_for_message(link: ProcessLink, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_there():
        assert time.monotonic() < deadline
        link.wait()


def test_a_welcome_process_knows_its_incarnation_and_has_left_its_pid(launcher: Launcher):
    link = launcher.connect()
    assert link.incarnation == 7
    assert link.config.facts == FACTS
    assert launcher.run_dir.pids() == {"scheduler": os.getpid()}
    link.close()
    assert launcher.run_dir.pids() == {}


def test_a_full_disk_is_no_reason_not_to_run(launcher: Launcher, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    link = launcher.connect()
    assert link.incarnation == 7
    link.close()


def test_a_refused_process_reports_why(launcher: Launcher):
    with pytest.raises(BootError, match="the launcher refused this scheduler: too old"):
        launcher.connect(Refusal("too old"))


def test_a_process_that_is_stopped_before_it_is_welcome_does_not_run(launcher: Launcher):
    link = launcher.connect(Stop())
    assert link.is_stopping
    link.close()


def test_a_launcher_that_does_not_answer_is_provided_up(launcher: Launcher, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime.process, "WELCOME_TIMEOUT_S", 0.1)
    with pytest.raises(BootError, match="did not answer within"):
        ProcessLink("scheduler", launcher.run_dir)


def test_two_processes_cannot_have_one_name(launcher: Launcher):
    link = launcher.connect()
    with pytest.raises(BootError, match=f"a scheduler .pid {os.getpid()}. runs in .* already"):
        ProcessLink("scheduler", launcher.run_dir)
    link.close()


def test_progress_in_one_phase_is_reported_from_time_to_time(launcher: Launcher, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime.process, "PHASE_INTERVAL_S", 1000.0)
    link = launcher.connect()
    for phase in (("loading", 0.0), ("loading", 0.1), ("loading", 0.2), ("loading",), ("warming up", 0.0)):
        link.phase(*phase)
    expected = [PhaseReport("loading", 0.0), PhaseReport("loading"), PhaseReport("warming up", 0.0)]
    assert [launcher.next() for _ in expected] == expected
    link.close()


def test_reports_arrive_in_order(launcher: Launcher):
    link = launcher.connect()
    link.phase("loading", 0.5)
    link.ready("no CUDA graphs")
    link.drained(3)
    link.fail("no weights")
    expected = [PhaseReport("loading", 0.5), Ready("no CUDA graphs"), Drained(3), BootFailed("no weights")]
    assert [launcher.next() for _ in expected] == expected
    link.close()


def test_commands_are_returned_and_a_stop_sets_the_flag(launcher: Launcher):
    link = launcher.connect()
    assert link.receive_control() == []
    launcher.control.send("scheduler", Drain(1.0))
    launcher.control.send("scheduler", ProcessTable(()))
    launcher.control.send("scheduler", Stop())
    commands: list[Any] = []
    wait_for_message(link, lambda: bool(commands.extend(link.receive_control()) or link.is_stopping))
    assert commands == [Drain(1.0), ProcessTable(())]
    link.close()


def test_beats_come_once_a_second_and_at_once_when_work_begins_or_ends(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
):
    link = launcher.connect()
    now_ns = 5_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    for step_ns, is_busy in ((0, False), (1, False), (2, True), (3, True), (4, False), (900_000_004, False)):
        now_ns = 5_000_000_000 + step_ns
        link.beat(lambda: {"rows": 1.0}, is_busy)
    link.ready()
    beats: list[Any] = []
    while not isinstance(message := launcher.next(), Ready):
        beats.append(message)
    assert {(beat.gauges["rows"], len(beat.histograms)) for beat in beats} == {(1.0, 0)}
    assert [(beat.sent_ns - 5_000_000_000, beat.busy_since_ns > 0) for beat in beats] == [
        (0, False),
        (2, True),
        (4, False),
        (900_000_004, False),
    ]
    assert isinstance(beats[0], Beat)
    assert beats[0].gauges == {"rows": 1.0}
    link.close()


def test_a_message_wakes_the_loop(launcher: Launcher):
    link = launcher.connect()
    receiver: Receiver[Any] = Receiver(launcher.run_dir.socket("scheduler"), ToScheduler)
    link.add_receiver(receiver)
    sender: Sender[Any] = Sender(launcher.run_dir.socket("scheduler"))
    sender.send(StopSeen(1, 0))
    taken: list[Any] = []
    wait_for_message(link, lambda: bool(taken.extend(receiver.receive()) or taken))
    assert taken == [StopSeen(1, 0)]
    for channel in (sender, receiver, link):
        channel.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_wakes_the_loop_and_stops_it(launcher: Launcher, number: signal.Signals):
    link = launcher.connect()
    link.stop_on_signal()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
    timer.start()
    wait_for_message(link, lambda: link.is_stopping)
    timer.join()
    began_s = time.monotonic()
    link.close()
    assert time.monotonic() - began_s > GRACE_S / 2, "it may have been the signal of the launcher's death"
    assert launcher.run_dir.path.exists()


def test_a_beat_carries_sizes_and_distributions(launcher: Launcher):
    link = launcher.connect()
    histograms = {"step_rows": HistogramCounts((1, 2), 5.0)}
    link.beat(lambda: {"rows": 2.0}, histograms=lambda: histograms)
    beat = launcher.next()
    assert isinstance(beat, Beat)
    assert (beat.gauges, beat.histograms) == ({"rows": 2.0}, histograms)


def run_in_process(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, serve: Callable[[ProcessLink], None]
) -> tuple[int, list[Any]]:
    """Runs `run_process` here, with a thread as the launcher. Returns the exit code and the reports."""
    monkeypatch.setattr("sys.argv", ["scheduler_proc", "--run-dir", str(launcher.run_dir.path)])
    monkeypatch.setattr(runtime.process.logging, "basicConfig", lambda **kwargs: None)
    answering = threading.Thread(target=launcher._answer, args=(Welcome(1),))
    answering.start()
    code = run_process("scheduler_proc", serve)
    answering.join()
    return code, [launcher.next()]


def test_a_process_that_serves_ends_with_0(launcher: Launcher, monkeypatch: pytest.MonkeyPatch):
    assert run_in_process(launcher, monkeypatch, lambda link: link.ready()) == (0, [Ready()])
    assert launcher.run_dir.pids() == {}


def test_a_process_that_cannot_start_reports_its_launcher_and_ends_with_1(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
):
    def fail(link: ProcessLink) -> None:
        raise BootError("no weights", 512)

    assert run_in_process(launcher, monkeypatch, fail) == (1, [BootFailed("no weights", 512)])


def test_a_process_without_a_run_reports_it_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["scheduler_proc", "--run-dir", str(tmp_path)])
    assert run_process("scheduler_proc", lambda link: None) == 1
    assert f"scheduler_proc: no server runs in {tmp_path}" in capsys.readouterr().err
    assert RunDir(tmp_path).path.exists()
