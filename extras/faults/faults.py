"""Faults on purpose (`--enable-fault-injection`): a process dies or stops, an edge of the ring misbehaves.

Without the flag none of this is made: senders are plain ones and steps are run as they are.
"""

import logging
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from extras.faults import messages as wire
from messages.channels import Receiver, Sender
from messages.columns import num_int32, unpack_int64
from messages.control.admin import Acknowledged, ExtraInstruction, Failed, ProcessResult
from messages.control.processes import FRONTEND, kind_of
from messages.errors import SluiceError
from messages.frames import HEADER
from messages.ring.steps import Batch
from runtime.black_box.redaction import redact
from runtime.process import ProcessLink
from runtime.run_dir import RunDir
from supervisor.manifest import read_json

if TYPE_CHECKING:
    from scheduler_proc.deciding.scheduler import Scheduler
    from scheduler_proc.stepper import Stepper

T = TypeVar("T")

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
STOPPED_S = 0.02
"""All threads of a process have stopped this long after the signal."""

ANSWER_S = 0.05
"""The time for the answer to a `SignalSelf` to leave."""

NEVER_USED = b"\xc1"
"""The one byte that begins no msgpack value."""

INT32_BYTES = 4
UNREAD_TURN_S = 0.05
"""The wait of a main loop in each turn in place of receiving: while messages are there its own wait returns at once."""

POISON_FILE = "poison.json"

log = logging.getLogger("sluice.faults")


def attach(link: ProcessLink) -> None:
    """Makes the process of `link` obey `launch.py inject`."""
    faults = Faults(link.run_dir)
    faults.receivers = link.profiler.receivers
    link.make_sender = partial(faults.open_sender, link.run_dir)
    link.on_scheduler.append(faults.join_scheduler)
    link.register_extra(wire.EXTRA, partial(faults.execute, process_kind=kind_of(link.name)))


class PoisonedStepError(Exception):
    """A step that fails on purpose."""


class Faults:
    """The faults of one process. Poison is stored with the frames: a successor and a replay need it, too."""

    def __init__(self, run_dir: RunDir):
        self._folder = run_dir.black_box
        self._has_steps = False
        self._senders: dict[str, FaultySender] = {}
        self.receivers: list[Receiver[Any]] = []
        self.starved: set[int] = set()
        """The uids that the scheduler skips; 0 means the whole queue."""
        self.damage_pages: Callable[[int], None] | None = None
        """Overwrites this number of pages of a scheduler."""
        self._poisons = read_poisons(self._folder)

    def execute(self, instruction: ExtraInstruction, process_kind: str) -> ProcessResult:
        """Carries out a fault. Raises `SluiceError` if it cannot."""
        command = msgspec.msgpack.decode(instruction.command, type=wire.Fault)
        execute = self.executors(process_kind).get(cast("type[Any]", type(command)))
        return Failed("impossible", f"not for a {process_kind}") if execute is None else execute(command)

    def executors(self, process_kind: str) -> dict[type[Any], Callable[[Any], ProcessResult]]:
        """Returns the functions for the faults that this kind of process can have."""
        executors: dict[type[Any], Callable[[Any], ProcessResult]] = {
            wire.SignalSelf: self.signal_self,
            wire.EdgeFault: self.fault_edge,
            wire.Poison: self.poison,
            wire.Starve: self.starve,
            wire.DamagePages: self.die_of_damage,
            wire.StopReading: self.stop_reading,
            wire.ClearFaults: self.clear,
        }
        if process_kind == FRONTEND:  # whose event loop is not woken again for what it left unread
            del executors[wire.StopReading]
        return executors

    def open_sender(self, run_dir: RunDir, receiver: str) -> "FaultySender":
        sender = FaultySender(run_dir.socket(receiver))
        self._senders[receiver] = sender
        return sender

    def join_scheduler(self, scheduler: "Scheduler", stepper: "Stepper") -> None:
        """Puts the faults of a scheduler into the places where they would occur."""
        stepper.launch = self.poisoned(stepper.launch)
        scheduler.starve(self.starved)
        for observer in scheduler.cache.observers:
            if observer.outlives_process:
                self.damage_pages = observer.damage

    def signal_self(self, command: wire.SignalSelf) -> ProcessResult:
        """Dies or stops, a moment after the answer."""
        _do_soon(lambda: os.kill(os.getpid(), SIGNALS[command.kind]))
        return Acknowledged(f"pid {os.getpid()} gets {SIGNALS[command.kind].name}")

    def die_of_damage(self, command: wire.DamagePages) -> ProcessResult:
        """Overwrites pages and dies, a moment after the answer: no token of what it has then computed gets out."""
        damage_pages = self.damage_pages
        if damage_pages is None:
            raise SluiceError("its pages end with it, or it has none: damage is for a scheduler with --keep-kv-cache")

        def damage_and_die() -> None:
            """In a fork, which stops this process meanwhile: it commits nothing computed from damaged pages."""
            pid = os.getpid()
            if os.fork() == 0:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                damage_pages(command.num_pages)
                os.kill(pid, signal.SIGKILL)
                os._exit(0)

        _do_soon(damage_and_die)
        return Acknowledged(f"pid {os.getpid()} overwrites {command.num_pages} pages and dies")

    def fault_edge(self, command: wire.EdgeFault) -> ProcessResult:
        """Raises `SluiceError` if this process sends nothing to that one."""
        open_senders = {name: one for name, one in self._senders.items() if not one.is_closed}
        senders = [one for name, one in open_senders.items() if command.receiver in (name, kind_of(name))]
        if not senders:
            raise SluiceError(f"it sends nothing to {command.receiver}, only to {', '.join(open_senders)}")
        for sender in senders:
            sender.rules.append(Rule(command))
        each = f"each frame with probability {command.probability:g}"
        which = each if command.probability else f"{command.num_frames}"
        log.warning("injected: %s %s to the %s", command.kind, which, command.receiver)
        return Acknowledged(f"{command.kind} to {command.receiver}: {which}")

    def poison(self, command: wire.Poison) -> ProcessResult:
        """From now on the step that computes a token of the request, or all of the token ids in one row, fails."""
        if not self._has_steps:
            raise SluiceError("it runs no steps; poison is for the scheduler")
        self._keep_poisons([*self._poisons, command])
        return Acknowledged(f"{len(self._poisons)} poisons")

    def starve(self, command: wire.Starve) -> ProcessResult:
        """From now on a request, or the queue, gets nothing of any step."""
        if not self._has_steps:
            raise SluiceError("it runs no steps; starve is for the scheduler")
        self.starved.add(command.uid)
        return Acknowledged(f"no step has request {command.uid}" if command.uid else "nothing leaves the queue")

    def stop_reading(self, command: wire.StopReading) -> ProcessResult:
        """From now on the main loop finds nothing that other processes have sent."""
        for receiver in self.receivers:
            receiver.receive = _receive_nothing
        return Acknowledged("it receives nothing")

    def clear(self, command: wire.ClearFaults) -> ProcessResult:
        """Takes back every fault that has not happened yet."""
        for sender in self._senders.values():
            sender.rules.clear()
        for receiver in self.receivers:
            vars(receiver).pop("receive", None)  # and the method of its class is back
        self.starved.clear()
        if self._has_steps:  # the file is that process's alone
            self._keep_poisons([])
        return Acknowledged("no faults are left")

    def poisoned(self, launch: Callable[[Batch], T]) -> Callable[[Batch], T]:
        """Returns `launch`, except that steps with poison fail.

        A token that the step before samples on the device (`Batch.future_token_indices`) is not seen.
        """
        self._has_steps = True

        def launch_or_fail(batch: Batch) -> T:
            for poison in self._poisons:
                if _has_poison(batch, poison.uid, poison.token_ids):
                    if poison.kind == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise PoisonedStepError(f"step {batch.step_id} has poison in it")
            return launch(batch)

        return launch_or_fail

    def _keep_poisons(self, poisons: list[wire.Poison]) -> None:
        self._poisons = poisons
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_poisons(self._folder, poisons)


def read_poisons(folder: Path) -> list[wire.Poison]:
    """Returns the poison that the processes with frames in `folder` had. Raises `SluiceError`."""
    return read_json(folder / POISON_FILE, list[wire.Poison]) or []


def write_poisons(folder: Path, poisons: Sequence[wire.Poison]) -> None:
    new = folder / f"{POISON_FILE}.new"
    new.write_bytes(msgspec.json.encode(poisons))
    new.rename(folder / POISON_FILE)


def redact_poisons(folder: Path) -> None:
    """Puts placeholders for the token ids of the poison in `folder`. Raises `SluiceError`."""
    poisons = read_poisons(folder)
    if poisons:
        write_poisons(folder, [redact(poison) for poison in poisons])


class Rule:
    """A fault of an edge, and how many frames it still meets."""

    def __init__(self, fault: wire.EdgeFault):
        self.fault = fault
        self._num_left = fault.num_frames

    @property
    def is_over(self) -> bool:
        return not self.fault.probability and self._num_left == 0

    def meets_next(self) -> bool:
        """True if the next frame is met."""
        if self.fault.probability:
            return random.random() < self.fault.probability
        self._num_left -= 1
        return True


class FaultySender(Sender[Any]):
    """A sender whose frames may be dropped, doubled, corrupted (so that they do not decode) or delayed (in order)."""

    rules: list[Rule]

    def __init__(self, path: Any):
        super().__init__(path)
        self.rules = []
        self.is_closed = False
        self._slow_way: _SlowWay | None = None

    def _put(self, frame: bytes) -> None:
        if not self.rules and self._slow_way is None:
            super()._put(frame)
            return
        met = [rule.fault for rule in self.rules if rule.meets_next()]
        self.rules = [rule for rule in self.rules if not rule.is_over]
        kinds = {fault.kind for fault in met}
        if "corrupt" in kinds:
            frame = frame[: HEADER.size] + NEVER_USED + frame[HEADER.size :]
        delay_s = sum(fault.delay_s for fault in met)
        if delay_s and self._slow_way is None:
            self._slow_way = _SlowWay(super()._put)
        put = super()._put if self._slow_way is None else self._slow_way.make_put(delay_s)
        for _ in range(0 if "drop" in kinds else 2 if "duplicate" in kinds else 1):
            put(frame)

    def close(self) -> None:
        self.is_closed = True
        if self._slow_way is not None:
            self._slow_way.close()
        super().close()


class _SlowWay:
    """A thread that has taken over a sender's socket, and gives it each frame when it is due."""

    def __init__(self, put: Callable[[bytes], None]):
        self._put = put
        self._frames: queue.SimpleQueue[tuple[float, bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="slow edge", daemon=True)
        self._thread.start()

    def make_put(self, delay_s: float) -> Callable[[bytes], None]:
        due_s = time.monotonic() + delay_s
        return lambda frame: self._frames.put((due_s, frame))

    def close(self) -> None:
        """Lets go of the socket; what is not due within a second is lost."""
        self._frames.put(None)
        self._thread.join(1.0)

    def _run(self) -> None:
        while (item := self._frames.get()) is not None:
            due_s, frame = item
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                self._put(frame)
            except Exception:
                log.exception("a delayed frame was not sent")


def _do_soon(action: Callable[[], None]) -> None:
    timer = threading.Timer(ANSWER_S, action)
    timer.daemon = True
    timer.start()


def _receive_nothing(limit: int = 0) -> Iterator[Any]:
    time.sleep(UNREAD_TURN_S)
    return iter(())


def _has_poison(batch: Batch, uid: int, token_ids: bytes) -> bool:
    if uid:
        return uid in unpack_int64(batch.uids)
    start = batch.token_ids.find(token_ids)
    while start % INT32_BYTES and start >= 0:
        start = batch.token_ids.find(token_ids, start + 1)
    return start >= 0 and num_int32(token_ids) > 0
