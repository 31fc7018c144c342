"""One connection of a joiner to the head of a server, and the engine that it is for."""

import socket
import time
from typing import Any, Self, TypeVar

from extras.remote import messages as wire
from extras.remote.clock import ClockComparison
from extras.remote.engine import Engine
from extras.remote.join_keys import JoinKeys
from extras.remote.secure_channels import JoinerChannel
from messages import VERSION
from messages.channels import Waiter
from messages.control.admin import Instruction, InstructionDone, ReadStacks
from messages.control.processes import Stop
from messages.errors import BootError, SluiceError
from supervisor.child import END_LOOK_S
from supervisor.endings import quote
from supervisor.signals import STOP_SIGNALS, SignalPipe

A = TypeVar("A")

ANSWER_TIMEOUT_S = 30.0
LAST_WORDS_S = 2.0
TURN_S = 1.0


class NoHeadError(SluiceError):
    """The head does not take an engine now. Another attempt may succeed."""


class RefusedError(NoHeadError):
    """The head seems to have other keys; the connection of a head that has just ended looks the same."""


class EngineEndedError(SluiceError):
    """An engine that had served has ended, or the head has stopped it. The head may want another one."""


class StopSignalError(Exception):
    """The operator wants the joiner to end."""


class Session:
    """Begins to connect at once. Every method may raise `NoHeadError`, `BootError` or `StopSignalError`."""

    def __init__(self, address: str, keys: JoinKeys, signals: SignalPipe):
        self._signals = signals
        self._channel: JoinerChannel[wire.ToJoiner] = JoinerChannel(address, keys, wire.ToJoiner)
        self._waiter = Waiter()
        self._waiter.add_descriptor(signals.fileno())
        self._waiter.add_channel(self._channel)
        self._waiter.add_channel(self._channel.monitor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leaves the head with a reason."""
        why = "its joiner was stopped" if isinstance(error, StopSignalError) else str(error or "its joiner has left")
        self._channel.send(wire.EngineEnded(why))
        self._channel.close()

    def join(self) -> wire.Admitted:
        """Offers this machine, and returns the head's instruction."""
        self._channel.send(wire.Join(wire.JOIN_VERSION, VERSION, socket.gethostname()))
        return self.receive(wire.Admitted)

    def compare_clocks(self) -> int:
        """Returns by how many ns the head's monotonic clock is ahead of ours."""
        comparison = ClockComparison()
        while not comparison.is_over:
            self._channel.send(wire.ClockQuestion(time.monotonic_ns()))
            comparison.record(self.receive(wire.ClockAnswer), time.monotonic_ns())
        return comparison.ahead_ns

    def serve(self, engine: Engine) -> None:
        """Forwards messages between engine and head. Raises `EngineEndedError` when the engine has ended."""
        try:
            engine.listen(self._waiter)
            while True:
                self._follow(engine, self._turn(END_LOOK_S if engine.child.is_silent else TURN_S))
                for message in self._channel.receive():
                    self._carry_out(engine, message)
                if engine.child.notice_end():
                    self._report_end(engine)
                self._check_connection()
        finally:
            engine.stop()
            engine.close()

    def _turn(self, timeout_s: float) -> set[int]:
        """Waits for the first event, and returns the readable descriptors."""
        readable = self._waiter.wait(timeout_s)
        if any(number in STOP_SIGNALS for number in self._signals.read()):
            raise StopSignalError
        return readable

    def _check_connection(self) -> None:
        """Call it after the received messages have been handled: the head's last message comes before its end."""
        trouble = self._channel.monitor.look()
        if trouble:
            raise RefusedError(trouble) if self._channel.monitor.is_refused else NoHeadError(trouble)

    def send(self, message: Any) -> None:
        """Queues a message for the head."""
        self._channel.send(message)

    def rest(self, seconds: float) -> None:
        """Waits, in contact with the head."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self._turn(max(0.0, deadline_s - time.monotonic()))
            for _ in self._channel.receive():
                pass
            self._check_connection()

    def receive(self, kind: type[A]) -> A:
        """Returns the head's next message of this kind."""
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline_s:
            self._turn(max(0.0, deadline_s - time.monotonic()))
            for message in self._channel.receive():
                if isinstance(message, kind):
                    return message
                if isinstance(message, wire.TurnedAway):
                    raise NoHeadError(message.reason) if message.may_try_again else BootError(message.reason)
            self._check_connection()
        raise NoHeadError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s")

    def _follow(self, engine: Engine, readable: set[int]) -> None:
        child = engine.child
        if child.descriptor in readable:
            self._channel.send(wire.EngineOutput(tuple(child.read_output())))
            if child.is_silent:
                self._waiter.remove_descriptor(child.descriptor)
        for report in engine.reports():
            self._channel.send(wire.EngineSays(report))
        for frame in engine.frames():
            self._channel.send(frame)

    def _carry_out(self, engine: Engine, message: Any) -> None:
        match message:
            case wire.EngineFrame(frame):
                engine.send_frame(frame)
            case wire.Hop(frame):
                engine.send_hop(frame)
            case wire.Order(Stop()):
                engine.stop(in_order=True)
                raise EngineEndedError("the head has stopped the engine")
            case wire.FileQuestion():
                self._channel.send(engine.read_profile(message))
            case wire.Order(Instruction(instruction_id, ReadStacks())):
                self._channel.send(wire.EngineSays(InstructionDone(instruction_id, engine.read_stacks())))
            case wire.Order(command):
                engine.control.send(engine.name, command)
            case _:
                pass

    def _report_end(self, engine: Engine) -> None:
        """Forwards the engine's last reports, which may come after its end, and raises the resulting error."""
        deadline_s = time.monotonic() + LAST_WORDS_S
        child = engine.child
        while time.monotonic() < deadline_s and not (child.is_silent and (engine.has_served or engine.boot_error)):
            self._follow(engine, set() if child.is_silent else {child.descriptor})
            time.sleep(0.01)
        if engine.has_served:
            raise EngineEndedError(f"{engine.name} {child.ending}")
        raise BootError(
            f"{engine.name} cannot start: {engine.boot_error or f'it {child.ending}{quote(child.last_lines)}'}"
        )
