"""The cache of model directories of GGUF files: found by what they were made of, held while in use, and bounded.

A directory's name has a digest of what it was made of; `SOURCE_FILE` in it lists those parts of the model's files.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path

import msgspec

from messages.config.server import ModelFacts
from runtime.gguf.configs import FACTOR_TENSORS
from runtime.gguf.gguf_file import GgufFile
from runtime.gguf.header import open_regular
from runtime.own_directory import is_own_directory, own_directory

SOURCE_FILE = "source.json"
PART = "part-"
"""Begins the names of directories that are not complete."""

MAX_DIRECTORIES, MOST_BYTES = 64, 1 << 30
LEAST_AGE_S = 3600.0
"""A directory that was used since is not removed: its server may still start."""

MAX_STEM_CHARS = 40

_held: dict[Path, int] = {}
"""Descriptors that lock directories until this process, and the processes that it forks, have ended."""


class Source(msgspec.Struct, frozen=True):
    """What a directory is made of: places in the model's files [number of file, first byte, last], and their digest."""

    places: tuple[tuple[int, int, int], ...]
    digest: str

    @classmethod
    def of(cls, model: GgufFile) -> "Source":
        places = [(number, 0, size) for number, size in enumerate(model.header_sizes)]
        for tensor in (model.tensors[name] for name in FACTOR_TENSORS if name in model.tensors):
            places.append((model.paths.index(tensor.path), tensor.offset, tensor.offset + tensor.num_bytes))
        return cls(tuple(places), _digest(places, model.paths))

    def is_of(self, paths: Sequence[Path]) -> bool:
        """True if the files are still the same in these places."""
        with suppress(OSError, IndexError):
            return self.digest == _digest(self.places, paths)
        return False


def _digest(places: Sequence[tuple[int, int, int]], paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for number, begin, end in places:
        with open_regular(paths[number]) as file:
            file.seek(begin)
            digest.update(file.read(end - begin))
    return digest.hexdigest()


def cache_dir() -> Path:
    """Returns the directory for model directories; it need not exist. Without a home directory it cannot be created."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice" / "gguf"
    except RuntimeError:
        return Path(os.devnull) / "sluice"


def find_cached(name: str, paths: Sequence[Path]) -> Path | None:
    """Returns the directory of this name that was made of the files as they are, held; `None` if there is none."""
    parent = cache_dir()
    if not is_own_directory(parent):
        return None
    for directory in parent.glob(f"{escape(name)}-*"):
        if is_own_directory(directory):
            with suppress(OSError, msgspec.MsgspecError):
                source = msgspec.json.decode((directory / SOURCE_FILE).read_bytes(), type=Source)
                if source.is_of(paths) and hold(directory):
                    return directory
    return None


def publish(name: str, source: Source, write: Callable[[Path], None]) -> Path:
    """Returns the directory with what `write` writes, held. It appears atomically; another launcher may be faster.

    Raises `OSError` if the cache cannot be written.
    """
    parent = cache_dir()
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = parent / f"{name}-{source.digest[:12]}"
    with own_directory(parent):
        written = Path(tempfile.mkdtemp(dir=parent, prefix=PART))
        try:
            write(written)
            (written / SOURCE_FILE).write_bytes(msgspec.json.encode(source))
            _replace(written, directory)
        finally:
            shutil.rmtree(written, ignore_errors=True)
        with suppress(OSError):
            hold(directory)
        prune(parent)
    return directory


def _replace(written: Path, directory: Path) -> None:
    try:
        written.rename(directory)
    except OSError:
        if not is_own_directory(directory):
            raise


def hold(directory: Path) -> bool:
    """Notes that the directory is used, and keeps it while this process lives. False if it is just being removed."""
    if directory in _held:
        return True
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(descriptor)
        if directory.stat().st_ino == os.fstat(descriptor).st_ino:
            _held[directory] = descriptor
            return True
    except OSError:
        pass
    os.close(descriptor)
    return False


def hold_directories(facts: ModelFacts) -> None:
    """Holds the directories of a model that this process is to serve, if they are in the cache."""
    for directory in (facts.model_dir, facts.tokenizer_dir, facts.draft.model_dir if facts.draft else ""):
        if directory and Path(directory).parent == cache_dir():
            with suppress(OSError):
                hold(Path(directory))


def prune(parent: Path) -> None:
    """Removes the directories that were used longest ago, beyond the limits, unless a server holds them."""
    now_s, num_kept, num_bytes = time.time(), 0, 0
    used = {directory: _used_s(directory) for directory in _directories(parent)}
    for directory in sorted(used, key=lambda each: -used[each]):
        num_kept, num_bytes = num_kept + 1, num_bytes + _count_bytes(directory)
        is_beyond = num_kept > MAX_DIRECTORIES or num_bytes > MOST_BYTES or directory.name.startswith(PART)
        if is_beyond and now_s - used[directory] > LEAST_AGE_S:
            with suppress(OSError):
                _remove(directory)


def _directories(parent: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (path for path in sorted(parent.iterdir()) if is_own_directory(path))


def _used_s(directory: Path) -> float:
    with suppress(OSError):
        return directory.stat().st_mtime
    return 0.0


def _count_bytes(directory: Path) -> int:
    """Returns the bytes of its files, without those of the model, to which it has links."""
    num_bytes = 0
    with suppress(OSError):
        for path in directory.rglob("*"):
            num_bytes += path.lstat().st_size
    return num_bytes


def _remove(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which fails if a server holds it
        removed = directory.with_name(f"{PART}{directory.name}"[:255])
        directory.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
    finally:
        os.close(descriptor)
