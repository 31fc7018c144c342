"""A server some of whose processes are played here: the launcher runs next to this process and starts the others."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from extras.faults.messages import Poison, wrap
from messages.channels import ControlClient, Receiver, Sender, Waiter
from messages.config.server import Config
from messages.control.admin import Acknowledged, InstructProcesses, ProcessResults
from messages.control.processes import ENCODER, FRONTEND, RING, Hello, ProcessTable, Ready, Stop, ToProcess, kind_of
from messages.engine_names import SCHEDULER
from messages.errors import SluiceError
from messages.frame_files import UNIONS
from messages.schema import SCHEMA_VERSION
from runtime.run_dir import RunDir
from supervisor.client.admin_client import AdminClient
from supervisor.flags import flags_of
from supervisor.programs import start_launcher

KINDS = (FRONTEND, *RING)
NEVER_S = "1e9"
"""A played process sends no beats; what hangs is noticed by who waits for its output."""

NO_TOWER = "none"
"""The value of --mmproj for a model that is served without its tower."""

SAME_SIGNAL_S = 0.5
STOP_TIMEOUT_S = 20.0
POISON_TIMEOUT_S = 30.0
NUM_LOG_LINES = 25


class ServerEndedError(SluiceError):
    """The server, or a process of it, ended unexpectedly."""


class StandIn:
    """Plays all processes of a new server except those of the kinds in `real`. Encoders are as real as the scheduler.

    `flags` are the server's, after those of the recorded configuration. `channels` are the names of the channels that
    are received from here. Raises `ServerEndedError` if the server never becomes ready.
    """

    def __init__(self, config: Config, flags: Sequence[str], real: Sequence[str], channels: Sequence[str]):
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-replay-")
        self._log = Path(self._folder.name) / "log"
        self._run_dir = RunDir(Path(self._folder.name) / "run")
        has_played_encoder = config.facts.vision is not None and SCHEDULER not in real
        kinds = (*KINDS, ENCODER) if has_played_encoder else KINDS
        self._played = [kind for kind in kinds if kind not in real]
        command = [*server_flags(config, self._folder.name), *flags]
        if SCHEDULER in real:
            command += ["--data-parallel", str(config.run.data_parallel)]
        else:  # nor has it ranks
            command += ["--tensor-parallel", "1"]
        command += ["--port", "0", "--run-dir", str(self._run_dir.path), "--external", *self._played]
        with self._log.open("wb") as log:
            self._launcher = start_launcher(command, stdout=log, stderr=log)
        self._waiter = Waiter()
        self._controls: list[ControlClient[ToProcess]] = []
        self._receivers: list[Receiver[Any]] = []
        self._senders: dict[str, Sender[Any]] = {}
        self._channels = channels
        self._is_stopping = False
        """The server is being stopped; no call needs to wait any longer."""

    def __enter__(self) -> Self:
        try:
            self._wait_until_serving()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _wait_until_serving(self) -> None:
        while not self._run_dir.socket("launcher").exists():
            self._check()
            time.sleep(0.02)
        for name in self._channels:
            receiver: Receiver[Any] = Receiver(self._run_dir.socket(name), UNIONS[kind_of(name)])
            self._receivers.append(receiver)
            self._waiter.add_channel(receiver)
        for name in self._played:
            control: ControlClient[ToProcess] = ControlClient(self._run_dir.socket("launcher"), name, ToProcess)
            control.send(Hello(name, os.getpid(), SCHEMA_VERSION))
            control.send(Ready())
            self._controls.append(control)
            self._waiter.add_channel(control)
        while not self._is_serving():
            self._check()
            self._waiter.wait(1.0)

    def _is_serving(self) -> bool:
        tables = [message for message in self._receive_control() if isinstance(message, ProcessTable)]
        return bool(tables) and all(process.is_serving for process in tables[-1].processes)

    def _receive_control(self) -> list[ToProcess]:
        messages = [message for control in self._controls for message in control.receive()]
        self._is_stopping = self._is_stopping or any(isinstance(message, Stop) for message in messages)
        return messages

    def _check(self) -> None:
        if self._is_stopping or self._launcher.poll() is not None:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_LOG_LINES:]
            raise ServerEndedError("the server has ended:\n" + "\n".join(lines))

    def send(self, receiver: str, message: Any) -> None:
        """Sends to a process that is not played."""
        if receiver not in self._senders:
            self._senders[receiver] = Sender(self._run_dir.socket(receiver))
        self._senders[receiver].send(message)

    def put_images(self, files: Iterable[Path]) -> None:
        """Copies the images of requests to where processes read them."""
        self._run_dir.images.mkdir(mode=0o700, exist_ok=True)
        for file in files:
            shutil.copyfile(file, self._run_dir.images / file.name)

    def poison(self, poisons: Iterable[Poison]) -> None:
        """Injects the recorded faults into steps; the server must have been started for that."""
        with AdminClient(self._run_dir) as line:
            for poison in poisons:
                result = line.give(InstructProcesses((f"{SCHEDULER}*",), wrap(poison)), POISON_TIMEOUT_S)
                results = result.results.values() if isinstance(result, ProcessResults) else [result]
                if not all(isinstance(one, Acknowledged) for one in results):
                    raise SluiceError(f"the recorded faults cannot be injected: {result}")

    def receive(self, timeout_s: float) -> list[Any]:
        """Returns the messages for the played processes, after at most `timeout_s`.

        Raises `ServerEndedError` when the server has ended and no more messages can arrive.
        """
        self._waiter.wait(timeout_s)
        self._receive_control()
        messages = [message for receiver in self._receivers for message in receiver.receive()]
        if not messages:
            self._check()
        return messages

    def _stop(self) -> None:
        """Stops the server at once: its processes need no time, so the launcher gets two signals."""
        for _ in range(2):
            if self._launcher.poll() is None:
                self._launcher.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._launcher.wait(SAME_SIGNAL_S)
        try:
            self._launcher.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        for channel in (*self._receivers, *self._senders.values(), *self._controls):
            channel.close()
        self._folder.cleanup()


def server_flags(config: Config, folder: str) -> list[str]:
    """Returns the flags of a server that computes the same as a server with `config`.

    It has one process of each kind, replaces none, records no frames and takes no snapshots; its HTTP settings do not
    matter. It fetches no model and keeps its files in `folder`. Raises `SluiceError` for a text that a flag cannot
    contain.
    """
    facts = config.facts
    model = msgspec.structs.replace(
        config.model,
        model=str(Path(facts.model_dir).absolute()),
        tokenizer=str(Path(facts.tokenizer_dir).absolute()),
        served_model_name=facts.served_names[:1],
    )
    draft_model = str(Path(facts.draft.model_dir).absolute()) if facts.draft else ""
    scheduling = msgspec.structs.replace(config.scheduling, draft_model=draft_model)
    mmproj = NO_TOWER if facts.vision is None else facts.vision.mmproj and str(Path(facts.vision.mmproj).absolute())
    images = msgspec.structs.replace(config.images, mmproj=mmproj)
    cache = msgspec.structs.replace(config.cache, kv_disk=f"{folder}/kv-disk" if config.cache.kv_disk else "")
    flags = [
        *(flag for section in (model, cache, scheduling, images) for flag in flags_of(section)),
        *("--restart", *(f"{kind}=never" for kind in (*RING, *[ENCODER] * (facts.vision is not None)))),
        *("--hang-timeout-s", NEVER_S, "--drain-timeout-s", "0", "--black-box-mb", "0", "--max-snapshots", "0"),
    ]
    if any("\0" in flag for flag in flags):
        raise SluiceError("the manifest of the recording is damaged: there is a zero byte in a flag")
    return flags
