"""A directory of recorded frames as requests: the input of the replayed processes, and their output."""

import copy
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from extras.faults.faults import read_poisons
from extras.replay.outcomes import BY_REQUEST, Key, Outcome, Outcomes
from messages.config.server import Config
from messages.control.processes import FRONTEND, kind_of
from messages.engine_names import SCHEDULER, engine_name
from messages.errors import SluiceError
from messages.frame_files import Record, find_readers, read_records
from messages.frames import Arrivals
from messages.ring.images import IMAGE_DIGEST_BYTES
from messages.ring.replies import OpenStream
from messages.ring.requests import AbortMsg, FramesLost, StopSeen, TokenizeMsg, UserMsg
from runtime.black_box.image_recorder import FOLDER
from runtime.run_dir import RunDir
from supervisor.manifest import Manifest, read_json, read_manifest

OPENINGS: dict[str, type[Any]] = {
    "": TokenizeMsg,
    "tokenizer": TokenizeMsg,
    "scheduler": UserMsg,
    "detokenizer": OpenStream,
}
"""The first message of an attempt to the replayed processes, by their kind (empty: the whole ring)."""

NO_IMAGES = "frames have only digests of images, and these were recorded without --record-images-mb"

MAX_ENGINES = 64
MORE_TOKENS = 32
"""Tokens that an unfinished attempt gets beyond its recorded ones: some may have been in flight at a death."""


@dataclass
class Attempt:
    """One attempt of a request. `outcome` is what was recorded of it, `replayed` what comes now.

    `end` is sent after the same number of tokens as in the recording, if the request was ended by a message there. A
    request that had not ended there only has to run long enough to reproduce the crash of its process.
    """

    key: Key
    opening: Any
    sent_ns: int
    frame: str = ""
    """The frame that has brought it, as `launch.py decode` shows it."""
    outcome: Outcome = field(default_factory=Outcome)
    replayed: Outcome = field(default_factory=Outcome)
    end: AbortMsg | StopSeen | None = None
    is_broken: bool = False
    """Some of its frames were lost in the recording, where another attempt continued."""
    is_sent: bool = False
    is_end_sent: bool = False

    @property
    def is_whole(self) -> bool:
        """True if it ended by itself in the recording, so that all of its output must be reproduced."""
        return self.end is None

    @property
    def num_tokens_before_end(self) -> int:
        """Returns the number of tokens after which it is ended by request."""
        return len(self.outcome.tokens) + MORE_TOKENS * (not self.outcome.reason)

    @property
    def is_open(self) -> bool:
        """True if the replayed processes have it now."""
        return self.is_sent and not self.replayed.reason

    @property
    def engine(self) -> int:
        """The number of its scheduler; messages to a detokenizer do not contain it."""
        return getattr(self.opening, "engine", 1)

    @property
    def name(self) -> str:
        """Its name for people, with the scheduler unless that is the first."""
        uid, number = self.key
        where = f" ({engine_name(self.engine)})" if self.engine > 1 else ""
        return f"request {uid}, attempt {number}{where}"

    def renew(self) -> "Attempt":
        """Returns a copy without replayed results."""
        return replace(self, replayed=Outcome(), is_sent=False, is_end_sent=False)


class Recording:
    """The recorded messages of the replayed processes in `directory` or its black box: one kind, or (empty) all.

    `inputs` are all messages to them, in order. `trouble` is the reason for a snapshot, `poisons` are the faults that
    had been injected into steps. Raises `SluiceError` if the directory holds nothing that can be replayed. Frames that
    do not decode are counted, not replayed. With `uids` only these requests count.
    """

    def __init__(self, directory: Path, only: str = "", uids: Collection[int] = ()):
        black_box = RunDir(directory).black_box
        self.trouble = _read_trouble(directory / "manifest.json") if black_box.is_dir() else ""
        images = directory / FOLDER
        directory = black_box if black_box.is_dir() else directory
        self.manifest: Manifest = read_manifest(directory)
        self.config: Config = self.manifest.config
        self.poisons = read_poisons(directory)
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
        for record in read_records(readers):
            self._read(record, is_input=record.is_sent == (kind == FRONTEND))
        self.attempts = {key: one for key, one in self.attempts.items() if not uids or key[0] in uids}
        self.images, self.num_without_images = set[Path](), 0
        """The files of the images that the replayed processes read, and the attempts that lack one of theirs."""
        if only in ("", SCHEDULER):
            self._find_images(images)
        for attempt in self.attempts.values():
            attempt.end = self._find_end(attempt)
        if not self.attempts and self.num_without_images:
            raise SluiceError(f"{directory} holds no request that can be replayed: {NO_IMAGES}")
        if not self.attempts:
            raise SluiceError(f"{directory} holds no {'such ' * bool(uids)}request from its beginning on")
        engines = {getattr(message, "engine", 1) for _, message in self.inputs}
        if not 0 < min(engines) <= max(engines) <= MAX_ENGINES:
            raise SluiceError(f"{directory} is damaged: a message in it is for engine {max(engines)}")
        self._set_num_engines(max(self.config.run.data_parallel, *engines))  # a command may have added some

    def place(self, num_engines: int) -> None:
        """Distributes the requests of engines beyond `num_engines` among the existing engines, in turn."""
        self._set_num_engines(num_engines)
        for attempt in self.attempts.values():
            if attempt.engine > num_engines:
                engine = (attempt.engine - 1) % num_engines + 1
                attempt.opening = msgspec.structs.replace(attempt.opening, engine=engine)
                attempt.end = attempt.end and msgspec.structs.replace(attempt.end, engine=engine)

    def _set_num_engines(self, num_engines: int) -> None:
        run = msgspec.structs.replace(self.config.run, data_parallel=num_engines)
        self.config = msgspec.structs.replace(self.config, run=run)

    def choose(self, attempts: Iterable[Attempt]) -> Self:
        """Returns a recording of these attempts alone, without replayed results."""
        chosen = copy.copy(self)
        chosen.attempts = {one.key: one.renew() for one in attempts}
        return chosen

    def open_now(self) -> list[Attempt]:
        """Returns the attempts that the replayed processes have now, the oldest first."""
        return [attempt for attempt in self.attempts.values() if attempt.is_open]

    def _find_images(self, folder: Path) -> None:
        """Leaves out attempts with images whose bytes are not in `folder`."""
        for key, attempt in list(self.attempts.items()):
            files = {folder / image.digest.hex(): image.digest for image in attempt.opening.images}
            if all(file in self.images or _has(file, digest) for file, digest in files.items()):
                self.images.update(files)
            else:
                del self.attempts[key]
                self.num_without_images += 1

    def _find_outcome(self, key: Key) -> Outcome | None:
        attempt = self.attempts.get(key)
        return attempt.outcome if attempt and not attempt.is_broken else None

    def _read(self, record: Record, *, is_input: bool) -> None:
        if not record.is_sent:
            news = self._arrivals.record(record.sender_id, record.number)
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
        self.inputs.append((record.monotonic_ns, message))
        if isinstance(message, self._opening):
            frame = f"frame {record.number} of sender {record.sender_id:x} on {record.edge}"
            for opening in message.each() if isinstance(message, TokenizeMsg) else [message]:
                key = (opening.uid, opening.attempt)
                self.attempts.setdefault(key, Attempt(key, opening, record.monotonic_ns, frame))
        elif isinstance(message, AbortMsg | StopSeen):
            self._ends[message.uid, message.attempt] = message

    def _break_open(self) -> None:
        """Frames are lost: from now on the results of the present attempts are incomplete and reached no client."""
        for attempt in self.attempts.values():
            attempt.is_broken = attempt.is_broken or not attempt.outcome.reason

    def _find_end(self, attempt: Attempt) -> AbortMsg | StopSeen | None:
        end = self._ends.get(attempt.key)
        reason = attempt.outcome.reason
        is_by_request = reason in BY_REQUEST or isinstance(end, StopSeen)
        if reason and (not is_by_request or self._opening is OpenStream):  # a detokenizer is notified of every end
            return None
        return end or AbortMsg(*attempt.key, engine=attempt.engine)


def _has(file: Path, digest: bytes) -> bool:
    """True if the file is there itself and has this digest."""
    is_plain = file.is_file() and not file.is_symlink()
    return is_plain and hashlib.blake2b(file.read_bytes(), digest_size=IMAGE_DIGEST_BYTES).digest() == digest


class _Trouble(msgspec.Struct):
    """The fields that are read of a snapshot's manifest."""

    process: str | None = None
    text: str | None = None


def _read_trouble(manifest: Path) -> str:
    """Returns the entry for a process in a snapshot's manifest, empty if there is no manifest or nothing was wrong.

    Raises `SluiceError` if the manifest cannot be read.
    """
    reported = read_json(manifest, _Trouble)
    return f"{reported.process}: {reported.text}" if reported and reported.process else ""
