"""An engine on a machine that has joined: its scheduler, or a stage of its pipeline, with a link to a launcher.

Here the joiner is the launcher. The run directory outlives the engine, so the next one finds the KV cache in memory.
"""

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from extras.remote.messages import Admitted, EngineFrame, EngineReport, FilePart, FileQuestion, Hop, shift_stamps
from extras.remote.profiles import read_part
from messages.channels import ControlServer, Receiver, Sender, Waiter
from messages.config.server import Config
from messages.control.admin import Acknowledged, Failed, ProcessResult
from messages.control.processes import (
    BootFailed,
    Hello,
    Ready,
    StandingBy,
    Stop,
    ToLauncher,
    Welcome,
    kind_of,
    worker_number,
)
from messages.engine_names import RANK, hops_of, rank_of
from messages.frame_files import DECODERS
from messages.frames import HEADER
from runtime.run_dir import RunDir
from runtime.stacks import ask_for_stacks
from supervisor.child import Child, Command
from supervisor.python_process import python_command

STOP_TIMEOUT_S = 3.0
TURN_S = 0.1
STACKS_S = 0.2


class Engine:
    """The scheduler or rank `admitted.name`, started at once. `clock_ahead_ns`: how far the head's clock is ahead.

    Raises `OSError` if it cannot be started.
    """

    def __init__(self, admitted: Admitted, config: Config, run_dir: RunDir, clock_ahead_ns: int):
        self.name = admitted.name
        self._incarnation = admitted.incarnation
        self._clock_ahead_ns = clock_ahead_ns
        self._encoder = msgspec.msgpack.Encoder()
        self._run_dir = run_dir
        run_dir.write_config(config)
        self.control: ControlServer[ToLauncher] = ControlServer(run_dir.socket("launcher"), ToLauncher)
        self._is_stage = kind_of(self.name) == RANK
        rank, engine, module, receiver = rank_of(self.name), worker_number(self.name), "scheduler_proc", "detokenizer"
        if self._is_stage:
            module, receiver = "scheduler_proc.rank_process", hops_of((rank + 1) % config.run.num_ranks, engine)
        self.outbox: Receiver[Any] = Receiver(run_dir.socket(receiver), Any)
        self._inbox: Sender[Any] = Sender(run_dir.socket(self.name))
        self._hops: Sender[Any] | None = Sender(run_dir.socket(hops_of(rank, engine))) if self._is_stage else None
        self.child = Child(Command(self.name, (*python_command(module), "--name", self.name)))
        self.has_served = False
        self.boot_error = ""
        self.child.spawn(run_dir.path, None)
        run_dir.record_pid(self.name, self.child.pid)

    def listen(self, waiter: Waiter) -> None:
        """Makes `waiter` return when the engine reports something."""
        waiter.add_channel(self.control)
        waiter.add_channel(self.outbox)
        waiter.add_descriptor(self.child.descriptor)

    def reports(self) -> Iterator[EngineReport]:
        """Yields the engine's reports, with stamps of the head's clock."""
        for name, message in self.control.receive():
            match message:
                case Hello(pid=pid):
                    self.control.admit(name, pid)
                    self.control.send(name, Welcome(self._incarnation))
                case BootFailed(text):
                    self.boot_error = text
                case Ready():
                    self.has_served = True
                    yield message
                case StandingBy():
                    pass
                case _:
                    yield shift_stamps(message, self._clock_ahead_ns) if self._clock_ahead_ns else message  # pyright: ignore[reportReturnType]

    def frames(self) -> Iterator[EngineFrame | Hop]:
        """Yields the frames that the engine sends, with stamps of the head's clock."""
        for frame in self.outbox.receive_frames():
            yield Hop(frame) if self._is_stage else EngineFrame(self._shift(frame, "detokenizer", self._clock_ahead_ns))

    def send_frame(self, frame: bytes) -> None:
        """Sends the engine a frame from the head."""
        self._inbox.hand_on(self._shift(frame, "scheduler", -self._clock_ahead_ns))

    def send_hop(self, frame: bytes) -> None:
        """Sends a stage what the stage before has computed."""
        if self._hops is not None:
            self._hops.hand_on(frame)

    def read_stacks(self) -> ProcessResult:
        """Returns the stacks of the engine's threads; it gets a short time, in which no frames are forwarded."""
        path, num_bytes = self._run_dir.stacks_file(self.child.pid), 0
        deadline_s = time.monotonic() + STACKS_S
        if ask_for_stacks(self._run_dir, self.child.pid):
            while time.monotonic() < deadline_s:
                time.sleep(STACKS_S / 20)
                text = path.read_bytes()
                if text and len(text) == num_bytes:
                    return Acknowledged(text.decode(errors="replace"))
                num_bytes = len(text)
        return Failed("failed", f"it has written no stacks within {STACKS_S:g} s")

    def read_profile(self, question: FileQuestion) -> FilePart:
        """Returns a part of a file of its latest profile."""
        return read_part(self._run_dir.profiles, question, self._clock_ahead_ns)

    def _shift(self, frame: bytes, receiver: str, by_ns: int) -> bytes:
        if not by_ns or self._is_stage:  # a step has no stamps
            return frame
        try:
            message = DECODERS[receiver].decode(memoryview(frame)[HEADER.size :])
        except msgspec.DecodeError:  # its receiver reports it
            return frame
        return frame[: HEADER.size] + self._encoder.encode(shift_stamps(message, by_ns))

    def stop(self, in_order: bool = False) -> None:
        """Ends the process, at once or `in_order`, and waits until it has exited."""
        if in_order:
            self.control.send(self.name, Stop())
        deadline_s = time.monotonic() + (STOP_TIMEOUT_S if in_order else 0.0)
        while not self.child.notice_end() and self.child.pid:
            if time.monotonic() >= deadline_s:
                self.child.kill()
            self.child.read_output()
            self.child.wait(TURN_S)

    def close(self) -> None:
        """Call it when the process has ended."""
        for channel in (self.control, self.outbox, self._inbox, self._hops):
            if channel is not None:
                channel.close()
        self.child.release()
        self._run_dir.pid_file(self.name).unlink(missing_ok=True)
