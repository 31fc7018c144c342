"""Profiles one process: its main loop, the frames that it sends and receives, and sampled stacks.

A profile costs nothing while it does not run: it replaces methods of single objects when it starts and restores them
when it ends. All times are CLOCK_MONOTONIC in ns (`time.monotonic_ns()`).
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import msgspec

from messages.channels import Receiver, Sender
from messages.control.admin import Acknowledged, ProcessResult, StartProfile, StopProfile
from messages.errors import SluiceError
from runtime.run_dir import RunDir

MAX_NOTES = 2_000_000
"""Maximum slices and frames of one profile, so that a profile left running does not fill the memory."""

Slice = tuple[str, int, int]
"""Name, begin, end."""

FrameNote = tuple[str, int, int, int, int]
"""Name, begin and end of sending or processing it, sender, number."""

Sample = tuple[list[str], int]
"""A stack, outermost frame first (name, file and line, separated by NUL), and the ns since the previous sample."""


class ProcessProfile(msgspec.Struct, frozen=True, array_like=True):
    """The profile that one process writes to the run directory, to be merged.

    `torch_trace` is a file in Chrome's format. Its times are system clock times, `epoch_offset_ns` ahead of ours.
    """

    name: str
    pid: int
    incarnation: int
    began_ns: int
    ended_ns: int
    epoch_offset_ns: int
    slices: list[Slice]
    sent: dict[str, list[FrameNote]]
    """By receiver."""
    received: list[FrameNote]
    samples: list[Sample]
    """Consecutive samples from `samples_began_ns` on."""
    samples_began_ns: int = 0
    torch_trace: str = ""


class Observer(Protocol):
    """A profiler that runs during a profile: a sampling profiler or, in the scheduler, torch's."""

    def start(self) -> None: ...

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """Returns a context that marks a part of the main loop in the observer's own trace."""
        return nullcontext()

    def stop(self) -> None: ...

    def samples(self) -> tuple[int, list[Sample]]:
        """Returns the begin of the first sample, and the samples."""
        return 0, []

    def slices(self) -> list[Slice]:
        """Returns the parts of the main loop that the observer recorded itself. Call it after `stop`."""
        return []

    def write_trace(self, path: Path) -> bool:
        """Writes the observer's own trace, after `stop` and possibly in another thread. Returns False without one."""
        return False


class SamplingObserver(Observer):
    """pyinstrument, which samples the stack of this thread every millisecond while it works."""

    def __init__(self) -> None:
        # Imported here, because only a profile needs its 5 MB.
        from pyinstrument import Profiler

        self._profiler = Profiler(interval=0.001, async_mode="disabled")

    def start(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._profiler.start()

    def stop(self) -> None:
        self._session = self._profiler.stop()

    def samples(self) -> tuple[int, list[Sample]]:
        return self._began_ns, [(stack, round(seconds * 1e9)) for stack, seconds in self._session.frame_records]


class Part(msgspec.Struct, frozen=True):
    """A method of one object whose calls are slices of the main loop. `name` makes a slice's name of the arguments."""

    owner: Any
    method: str
    name: Callable[..., str]


class ProcessProfiler:
    """Starts and stops the profile of this process. `parts` are the parts of its main loop that get own slices."""

    def __init__(self, name: str, run_dir: RunDir):
        self.name = name
        self.incarnation = 0
        self.parts: list[Part] = []
        self.senders: list[Sender[Any]] = []
        self.receivers: list[Receiver[Any]] = []
        self.loop: Any = None
        """The link, if the main loop calls its `receive_control` and `wait`."""
        self.make_observer: Callable[[], Observer] = SamplingObserver
        self._run_dir = run_dir
        self._running: _Notes | None = None

    def start(self, command: StartProfile) -> ProcessResult:
        """Raises `SluiceError` if a profile is already running."""
        if self._running is not None:
            raise SluiceError("a profile is already running")
        notes = _Notes(self.make_observer())
        notes.observer.start()
        if self.loop is not None:
            notes.watch_turns(self.loop)
        for part in self.parts:
            notes.watch_part(part)
        for sender in self.senders:
            notes.watch_sender(sender)
        for receiver in self.receivers:
            notes.watch_receiver(receiver)
        self._running = notes
        return Acknowledged("the profile has begun")

    def stop(self, command: StopProfile) -> ProcessResult:
        """Ends the profile. A thread writes the file named in the result, which appears once it is complete."""
        if self._running is None:
            raise SluiceError("no profile is running")
        notes, self._running = self._running, None
        notes.end()
        directory = self._run_dir.profiles
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / f"{self.name}-{os.getpid()}-{notes.began_ns}.profile"
        threading.Thread(target=self._write, args=(notes, path), name="profile", daemon=True).start()
        return Acknowledged(str(path))

    def _write(self, notes: "_Notes", path: Path) -> None:
        torch_path = path.with_suffix(".torch.json")
        has_torch = notes.observer.write_trace(torch_path)
        samples_began_ns, samples = notes.observer.samples()
        profile = ProcessProfile(
            self.name,
            os.getpid(),
            self.incarnation,
            notes.began_ns,
            notes.ended_ns,
            notes.epoch_offset_ns,
            notes.slices + notes.observer.slices(),
            notes.sent,
            notes.received,
            samples,
            samples_began_ns,
            str(torch_path) if has_torch else "",
        )
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.msgpack.encode(profile))
        new.rename(path)


class _Notes:
    """A running profile."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.began_ns = time.monotonic_ns()
        self.ended_ns = 0
        self.epoch_offset_ns = 0
        self.slices: list[Slice] = []
        self.sent: dict[str, list[FrameNote]] = {}
        self.received: list[FrameNote] = []
        self._turn_began_ns = 0
        self._undo: list[Callable[[], None]] = []

    def end(self) -> None:
        for undo in self._undo:
            undo()
        self.observer.stop()
        self.ended_ns = time.monotonic_ns()
        self.epoch_offset_ns = time.time_ns() - time.monotonic_ns()

    def watch_turns(self, loop: Any) -> None:
        """Records each iteration of the main loop: from `receive_control` until `wait`, or until the next one."""
        receive_control, wait = loop.receive_control, loop.wait

        def recorded_receive_control() -> Any:
            self._end_turn()
            self._turn_began_ns = time.monotonic_ns()
            return receive_control()

        def recorded_wait(*arguments: Any) -> None:
            self._end_turn()
            wait(*arguments)

        self._replace(loop, "receive_control", recorded_receive_control)
        self._replace(loop, "wait", recorded_wait)

    def _end_turn(self) -> None:
        if self._turn_began_ns and len(self.slices) < MAX_NOTES:
            self.slices.append(("turn", self._turn_began_ns, time.monotonic_ns()))
        self._turn_began_ns = 0

    def watch_part(self, part: Part) -> None:
        original, slices, annotate = getattr(part.owner, part.method), self.slices, self.observer.annotate

        def recorded(*arguments: Any, **fields: Any) -> Any:
            name = part.name(*arguments)
            began_ns = time.monotonic_ns()
            try:
                with annotate(name):
                    return original(*arguments, **fields)
            finally:
                if len(slices) < MAX_NOTES:
                    slices.append((name, began_ns, time.monotonic_ns()))

        self._replace(part.owner, part.method, recorded)

    def watch_sender(self, sender: Sender[Any]) -> None:
        original, annotate = sender.send, self.observer.annotate
        notes = self.sent.setdefault(sender.path.stem, [])

        def recorded(message: Any) -> None:
            name = label(message)
            began_ns = time.monotonic_ns()
            with annotate(f"send {name}"):
                original(message)
            if len(notes) < MAX_NOTES:
                notes.append((name, began_ns, time.monotonic_ns(), sender.sender_id, sender.num_sent))

        self._replace(sender, "send", recorded)

    def watch_receiver(self, receiver: Receiver[Any]) -> None:
        """Records each frame from its arrival until the main loop requests the next one."""
        receive, record, notes = receiver.receive, receiver.arrivals.record, self.received
        latest = 0, 0, 0

        def recorded(sender: int, number: int) -> Any:
            nonlocal latest
            latest = sender, number, time.monotonic_ns()
            return record(sender, number)

        def recorded_receive(limit: int = 1024) -> Iterator[Any]:
            for message in receive(limit):
                sender, number, began_ns = latest
                yield message
                if len(notes) < MAX_NOTES:
                    notes.append((label(message), began_ns, time.monotonic_ns(), sender, number))

        self._replace(receiver.arrivals, "record", recorded)
        self._replace(receiver, "receive", recorded_receive)

    def _replace(self, owner: Any, method: str, recorded: Callable[..., Any]) -> None:
        if method in vars(owner):
            original: Any = getattr(owner, method)
            self._undo.append(lambda: setattr(owner, method, original))
        else:
            self._undo.append(lambda: delattr(owner, method))  # restores the method of its class
        setattr(owner, method, recorded)


def label(message: Any) -> str:
    """`DetokenizeMsg step 17`, `UserMsg uid 5`."""
    for field, word in (("step_id", "step"), ("uid", "uid")):
        value = getattr(message, field, None)
        if value is not None:
            return f"{type(message).__name__} {word} {value}"
    return type(message).__name__
