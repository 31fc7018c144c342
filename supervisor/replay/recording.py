"""A directory of recorded frames as requests: what went into the replayed processes, and what came out of them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from messages.config import Config
from messages.control import FRONTEND, kind_of
from messages.errors import SluiceError
from messages.frame_files import Record, find_readers
from messages.frames import Arrivals
from messages.replies import OpenStream
from messages.requests import AbortMsg, DropBefore, FramesLost, StopSeen, TokenizeMsg, UserMsg
from runtime.run_dir import RunDir
from supervisor.manifest import Manifest, read_manifest
from supervisor.replay.outcomes import BY_REQUEST, Key, Outcome, Outcomes

OPENINGS: dict[str, type[Any]] = {
    "": TokenizeMsg,
    "tokenizer": TokenizeMsg,
    "scheduler": UserMsg,
    "detokenizer": OpenStream,
}
"""By what is replayed (the whole ring: empty): the first message of an attempt that goes into it."""


@dataclass
class Attempt:
    """One attempt of a request. `outcome` is what was recorded of it, `replayed` what comes now.

    `end` ends it: it is sent when as many tokens have come as in the recording, for what ended by request was ended
    after that many, and what had not ended there need not go on.
    """

    key: Key
    opening: Any
    sent_ns: int
    outcome: Outcome = field(default_factory=Outcome)
    replayed: Outcome = field(default_factory=Outcome)
    end: AbortMsg | StopSeen | None = None
    is_broken: bool = False
    """Some of its frames were lost in the recording, where another attempt went on."""
    is_sent: bool = False
    is_end_sent: bool = False

    @property
    def is_whole(self) -> bool:
        """Tells whether it ended by itself in the recording, so that all of it must come again."""
        return self.end is None


class Recording:
    """What `directory`, or the black box in it, holds of the replayed processes: one kind, or (empty) all together.

    `inputs` are all messages that went in, in their order; what went to several engines goes to one. Raises
    `SluiceError` where the directory holds nothing that can be replayed. Frames that do not decode are counted, not
    replayed. With `uids` only these requests count.
    """

    def __init__(self, directory: Path, only: str = "", uids: Collection[int] = ()):
        black_box = RunDir(directory).black_box
        directory = black_box if black_box.is_dir() else directory
        self.manifest: Manifest = read_manifest(directory)
        self.config: Config = self.manifest.config
        self.inputs: list[tuple[int, Any]] = []
        """Each with its monotonic stamp."""
        self.attempts: dict[Key, Attempt] = {}
        self.num_unreadable = 0
        self._ends: dict[Key, AbortMsg | StopSeen] = {}
        self._opening = OPENINGS[only]
        self._arrivals = Arrivals(only)
        self._outcomes = Outcomes(self._find_outcome)
        kind = only or FRONTEND
        readers = [reader for reader in find_readers(directory) if kind_of(reader.process) == kind]
        records = sorted((one for reader in readers for one in reader.read()), key=lambda one: one.monotonic_ns)
        for record in records:
            self._read(record, is_input=record.is_sent == (kind == FRONTEND))
        self.attempts = {key: one for key, one in self.attempts.items() if not uids or key[0] in uids}
        for attempt in self.attempts.values():
            attempt.end = self._find_end(attempt)
        if not self.attempts:
            raise SluiceError(f"{directory} holds no {'such ' * bool(uids)}request from its beginning on")

    def _find_outcome(self, key: Key) -> Outcome | None:
        attempt = self.attempts.get(key)
        return attempt.outcome if attempt and not attempt.is_broken else None

    def _read(self, record: Record, *, is_input: bool) -> None:
        if not record.is_sent:
            news = self._arrivals.note(record.sender_id, record.number)
            if news is False:
                return
            if news is not True:
                self._break_open()
        try:
            message = record.decode()
        except msgspec.DecodeError:  # cut, or corrupted on purpose
            self.num_unreadable += 1
            return
        if not is_input:
            if isinstance(message, FramesLost):
                self._break_open()
            self._outcomes.collect(message)
            return
        message = _for_one_engine(message)
        self.inputs.append((record.monotonic_ns, message))
        if isinstance(message, self._opening):
            key = (message.uid, message.attempt)
            self.attempts.setdefault(key, Attempt(key, message, record.monotonic_ns))
        elif isinstance(message, AbortMsg | StopSeen):
            self._ends[message.uid, message.attempt] = message

    def _break_open(self) -> None:
        """Frames are lost: what comes of the present attempts from now on lacks something, and counted for nobody."""
        for attempt in self.attempts.values():
            attempt.is_broken = attempt.is_broken or not attempt.outcome.reason

    def _find_end(self, attempt: Attempt) -> AbortMsg | StopSeen | None:
        end = self._ends.get(attempt.key)
        reason = attempt.outcome.reason
        is_by_request = reason in BY_REQUEST or isinstance(end, StopSeen)
        if reason and (not is_by_request or self._opening is OpenStream):  # a detokenizer is told of every end
            return None
        return end or AbortMsg(*attempt.key)


def _for_one_engine(message: Any) -> Any:
    if isinstance(message, DropBefore):
        return msgspec.structs.replace(message, engines=(1,))
    return msgspec.structs.replace(message, engine=1) if getattr(message, "engine", 1) > 1 else message
