"""A frontend that stops reading affects only itself."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.columns import unpack_int64
from messages.control.processes import Ready
from messages.ring.peers import ToFrontend
from messages.ring.replies import OpenStream, StepReplies
from messages.ring.uids import UIDS_PER_BLOCK, frontend_socket
from tests.detokenizer_proc.steps import step
from tests.detokenizer_proc.test_process import config_of
from tests.detokenizer_proc.tiny_tokenizers import characters
from tests.fake_launcher import ROOT, FakeLauncher

pytestmark = pytest.mark.ring

MODULE = "tests.detokenizer_proc.small_channels_process"
TIMEOUT_S = 90.0
NUM_ROWS = 64
PORTION = 10
"""Steps that are sent before the reading frontend has received them: fewer than its channel holds."""

STOPPED_FRONTEND = """
import os, pathlib, signal, sys
import messages.channels
from messages.channels import Receiver, Waiter
from messages.ring.peers import ToFrontend
from messages.ring.requests import FramesLost
messages.channels.MAX_QUEUED_FRAMES = 500
receiver = Receiver(pathlib.Path(sys.argv[1]), ToFrontend)
print("bound", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
waiter = Waiter()
waiter.add_channel(receiver)
while not any(isinstance(message, FramesLost) for message in receiver.receive()):
    waiter.wait(1.0)
print("lost", flush=True)
"""


class StoppedFrontend:
    """Binds the socket of the frontend with block 1 and is stopped. Prints "lost" when it detects missing frames."""

    def __init__(self, socket: Path):
        self._process = subprocess.Popen(
            [sys.executable, "-c", STOPPED_FRONTEND, str(socket)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        assert self._output.readline() == b"bound\n"
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def continue_after(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def has_noticed(self) -> bool:
        readable, _, _ = select.select([self._output], [], [], 0.0)
        return bool(readable) and self._output.readline() == b"lost\n"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
    characters().save(str(tmp_path / "tokenizer.json"))
    with FakeLauncher(config_of(tmp_path, 64)) as launcher:
        yield launcher


class Detokenizer:
    """The process between a scheduler and two frontends. One frontend is stopped; the test acts as the others."""

    def __init__(self, launcher: FakeLauncher):
        self.launcher = launcher
        self.frontend = launcher.open_receiver(frontend_socket(2), ToFrontend)
        self._scheduler = launcher.open_sender("detokenizer")
        self._stopped_uids = [UIDS_PER_BLOCK + row for row in range(NUM_ROWS)]
        self._uid = 2 * UIDS_PER_BLOCK
        self._num_steps = 0
        launcher.processes["detokenizer"] = launcher.start(MODULE)
        del launcher.processes[MODULE]
        launcher.wait_for("detokenizer", Ready, timeout_s=60)
        for uid in (*self._stopped_uids, self._uid):
            self._scheduler.send(OpenStream(uid, 0))

    def run_steps(self) -> None:
        """Sends some steps. The reading frontend gets its row of each."""
        rows = [(uid, 0, 1) for uid in (*self._stopped_uids, self._uid)]
        expected = range(self._num_steps, self._num_steps + PORTION)
        for step_id in expected:
            self._scheduler.send(step(rows, step_id=step_id))
        self._num_steps += PORTION
        for step_id in expected:
            replies = self.launcher.take_one(self.frontend, TIMEOUT_S)
            assert isinstance(replies, StepReplies)
            assert (replies.step_id, list(unpack_int64(replies.uids))) == (step_id, [self._uid])

    @property
    def log_text(self) -> str:
        return self.launcher.log_text(MODULE)


def test_a_frontend_that_does_not_read_costs_itself_only(launcher: FakeLauncher) -> None:
    stopped = StoppedFrontend(launcher.run_dir.socket(frontend_socket(1)))
    try:
        detokenizer = Detokenizer(launcher)
        deadline_s = time.monotonic() + TIMEOUT_S
        while "dropped StepReplies" not in detokenizer.log_text:
            detokenizer.run_steps()
            assert time.monotonic() < deadline_s, detokenizer.log_text
        detokenizer.run_steps()
        stopped.continue_after()
        deadline_s = time.monotonic() + TIMEOUT_S
        while not stopped.has_noticed():
            detokenizer.run_steps()
            assert time.monotonic() < deadline_s, detokenizer.log_text
    finally:
        stopped.close()
    assert "the receiver reads again" in detokenizer.log_text
