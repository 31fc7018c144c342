"""The head's side of fetching a model's files: a thread reads them, so that the proxy's main loop never waits.

A joiner can only name files that a listing has returned, and the listing has the names that a manifest has: those of
weights, configuration and tokenizer in the model's directories.
"""

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from queue import Empty, Full, Queue, SimpleQueue
from typing import NamedTuple

from extras.remote.file_messages import FILE_PART_BYTES, Directory, FileList, ListFiles, ModelPart, RemoteFile, SendPart
from extras.remote.messages import TurnedAway
from messages.config.server import Config
from messages.errors import BootError
from runtime.model_files import OTHER_FILES, WEIGHT_FILES
from runtime.stage_files import ALL_LAYERS, spans_of_layers
from supervisor.manifest import identify_model

MAX_QUEUED = 64
"""Questions of one joiner that wait for the disk; a correct one asks for fewer at a time."""

Answer = FileList | ModelPart | TurnedAway


class ListedFile(NamedTuple):
    """`state`: the file's identity when it was listed. Another file of the name is not sent."""

    path: Path
    num_bytes: int
    state: tuple[int, ...]


class FileServer:
    """Answers in the order of the questions. `wake` is called, in another thread, when an answer is there.

    `rank`: the number of the rank that has joined, 0 for a scheduler.
    """

    def __init__(self, config: Config, wake: Callable[[], None], rank: int = 0):
        self._config, self._wake, self._rank = config, wake, rank
        self._listed: dict[tuple[Directory, str], ListedFile] = {}
        self._questions: Queue[tuple[bytes, ListFiles | SendPart]] = Queue(MAX_QUEUED)
        self._answers: SimpleQueue[tuple[bytes, Answer]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.fraction = 0.0
        """How far the file that is being sent has been read."""

    def ask(self, peer: bytes, question: ListFiles | SendPart) -> None:
        """Queues a question of connection `peer`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="file-server", daemon=True)
            self._thread.start()
        try:
            self._questions.put_nowait((peer, question))
        except Full:
            self._answers.put((peer, TurnedAway(f"more than {MAX_QUEUED} parts of files were asked for at once")))

    def answers(self) -> Iterator[tuple[bytes, Answer]]:
        """Yields (connection, answer) for what has been read. Never waits."""
        try:
            while True:
                yield self._answers.get_nowait()
        except Empty:
            return

    def _run(self) -> None:
        while True:
            peer, question = self._questions.get()
            try:
                answer = self._list(question) if isinstance(question, ListFiles) else self._read(question)
            except OSError as error:
                answer = TurnedAway(f"the head cannot read {error.filename}: {error.strerror}")
            except (BootError, ValueError, LookupError, TypeError, struct.error) as error:
                answer = TurnedAway(f"the head cannot read its model: {error}")
            self._answers.put((peer, answer))
            self._wake()

    def _list(self, question: ListFiles) -> Answer:
        facts = self._config.facts
        draft_dir = facts.draft.model_dir if facts.draft else None
        by_name = {"model": facts.model_dir, "tokenizer": facts.tokenizer_dir, "draft": draft_dir}
        if (name_of_directory := by_name[question.directory]) is None:
            return TurnedAway(f"the head has no directory {question.directory!r}")
        directory = Path(name_of_directory)
        found = {file.name: file for file in identify_model(directory)}
        weights = [] if question.directory == "tokenizer" else self._choose_weights(found)
        layers = layers_of(self._config.run.stages, self._rank)
        spans = dict(zip(weights, spans_of_layers([directory / name for name in weights], layers), strict=True))
        spans |= {
            name: [(0, file.num_bytes)]
            for name, file in found.items()
            if any(fnmatch(name, pattern) for pattern in OTHER_FILES)
        }
        self._listed |= {
            (question.directory, name): ListedFile(
                directory / name, found[name].num_bytes, _state_of((directory / name).stat())
            )
            for name in spans
        }
        files = [RemoteFile(name, found[name].num_bytes, found[name].digest, tuple(spans[name])) for name in spans]
        return FileList(tuple(sorted(files, key=lambda file: (file.num_bytes, file.name))))

    def _choose_weights(self, names: Iterable[str]) -> list[str]:
        """Returns the files of the format that is loaded, which is the preferred one of those that are there."""
        formats = [name for name in WEIGHT_FILES if self._config.model.load_format in ("auto", name)]
        of_format = ([name for name in names if fnmatch(name, WEIGHT_FILES[each].pattern)] for each in formats)
        return next(filter(None, of_format), list[str]())

    def _read(self, question: SendPart) -> Answer:
        listed = self._listed.get((question.directory, question.name))
        if listed is None or not 0 <= question.begin <= listed.num_bytes:
            return TurnedAway(f"{question.name!r}, byte {question.begin}, is not in a file that the head has listed")
        descriptor = os.open(listed.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            facts = os.fstat(descriptor)
            if _state_of(facts) != listed.state:
                return TurnedAway(f"{question.name} has changed on the head; start the head and this machine again")
            data = os.pread(descriptor, FILE_PART_BYTES, question.begin)
        finally:
            os.close(descriptor)
        self.fraction = (question.begin + len(data)) / max(1, facts.st_size)
        is_there = bool(question.digest) and hashlib.sha256(data).digest() == question.digest
        return ModelPart(question.name, question.begin, None if is_there else data)


def layers_of(stages: str, rank: int) -> range:
    """Returns the layers of a stage on another machine, with `--stages 12,20`; all if the split is measured later."""
    counts = [int(count) for count in stages.split(",") if count.isdecimal()]
    if not 0 < rank <= len(counts):
        return ALL_LAYERS
    begin = sum(counts[: rank - 1])  # rank1 is the first stage; the last one is on the head
    return range(begin, begin + counts[rank - 1])


def _state_of(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
