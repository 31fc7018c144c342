"""Files of the frames that one process sent and received, with timestamps: a ring of bytes, or a complete recording.

A file is a header followed by `capacity` bytes of records. Positions count all bytes ever written, so a record is at
its position modulo `capacity`. The bytes from `tail` to `head` are complete records: the writer advances `tail` before
it overwrites old records and `head` after it has written new ones, so the process may die at any instruction. While
the process runs, a reader reads `tail` again after the bytes and drops those before it.
"""

import contextlib
import os
import struct
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from messages.control.processes import kind_of
from messages.errors import SluiceError, errors_as
from messages.frames import HEADER
from messages.ring.peers import ToFrontend
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import ToEncoder, ToScheduler, ToTokenizer
from messages.ring.steps import ToRank
from messages.schema import SCHEMA_VERSION

SUFFIX = ".frames"
MAGIC = b"SLUICEFR"
FORMAT = 2
"""Version of the file format. The header has the schema version of the messages; fields are only ever appended."""

FILE_HEADER = struct.Struct("<8sIIQQQQ48s")
"""Magic, format, pid, schema version, wall-clock and monotonic time of the beginning (ns), capacity, process name."""

TAIL, HEAD, DATA = 112, 120, 128
"""Offsets of the two positions (uint64) and of the records."""

POSITION = struct.Struct("<Q")
RECORD = struct.Struct("<IBBHQ")
"""Size of the frame, flags, size of the receiver's name, 0, monotonic time (ns). Name and frame follow, padded to a
multiple of `ALIGNMENT`."""

ALIGNMENT = 8
IS_SENT, IS_CUT = 1, 2
"""Flags: the process sent the frame (otherwise it received it); the frame is too large, only its header is kept."""

SKIP = b"\xff" * 4
"""Stands in place of a size if the next record is at the beginning of the ring."""

UNIONS: dict[str, Any] = {
    "frontend": ToFrontend,
    "tokenizer": ToTokenizer,
    "encoder": ToEncoder,
    "scheduler": ToScheduler,
    "detokenizer": ToDetokenizer,
    "rank": ToRank,
}
"""The messages that each kind of process receives."""

DECODERS = {kind: msgspec.msgpack.Decoder(union) for kind, union in UNIONS.items()}


class FrameFileError(SluiceError):
    """The file is not a file of frames, has another format, or is damaged."""


@contextlib.contextmanager
def reporting_damage(path: Path) -> Generator[None, None, None]:
    """Converts errors of code that reads messages into `FrameFileError`: a message may decode but be inconsistent.

    A flipped bit can cause this, as files have no checksums.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        kind = type(error).__name__
        raise FrameFileError(f"{path} is damaged: it has an inconsistent message ({kind}: {error})") from error


class Record(NamedTuple):
    """One frame as a process sent or received it. `receiver` is the process that reads the channel."""

    process: str
    pid: int
    is_sent: bool
    receiver: str
    monotonic_ns: int
    wall_ns: int
    frame: bytes

    @property
    def is_cut(self) -> bool:
        """True if the message is missing because it was too large."""
        return len(self.frame) <= HEADER.size

    @property
    def sender_id(self) -> int:
        return HEADER.unpack_from(self.frame)[0]

    @property
    def number(self) -> int:
        return HEADER.unpack_from(self.frame)[1]

    @property
    def edge(self) -> str:
        """`scheduler:detokenizer`. The sender of a received frame is not known here."""
        return f"{self.process if self.is_sent else '?'}:{self.receiver}"

    @property
    def body(self) -> bytes:
        """The encoded message."""
        return self.frame[HEADER.size :]

    def decode(self) -> Any:
        """Returns the message. Raises `msgspec.DecodeError`, also if it is cut."""
        return DECODERS[kind_of(self.receiver)].decode(self.body)


def padded(size: int) -> int:
    """Rounds `size` up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class FrameReader:
    """Reads one file, even while its process is writing. Raises `FrameFileError` if it cannot be read."""

    def __init__(self, path: Path):
        with errors_as(FrameFileError, f"{path} cannot be read"):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            header = os.pread(self._descriptor, DATA, 0)
        if len(header) < DATA or not header.startswith(MAGIC):
            raise FrameFileError(f"{path} is not a file of frames")
        _, version, self.pid, self.schema_version, self.wall_ns, self.begun_ns, self._capacity, name = (
            FILE_HEADER.unpack_from(header)
        )
        if version != FORMAT:
            raise FrameFileError(f"{path} has format {version}, this program reads {FORMAT}: use the one that wrote it")
        self.path = path
        self.process = name.rstrip(b"\0").decode(errors="replace")
        self._position = 0
        if not self._capacity:
            raise self._damaged(0)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    @property
    def is_of_this_version(self) -> bool:
        return self.schema_version == SCHEMA_VERSION

    def read(self) -> list[Record]:
        """Returns the records added since the last call, oldest first. Raises `FrameFileError`."""
        head = self._read_position(HEAD)
        begin = max(self._position, self._read_position(TAIL))
        ring = self._capacity
        if head > begin + ring or min(head, ring) > os.fstat(self._descriptor).st_size - DATA:
            raise self._damaged(0)
        split = min(head, (begin // ring + 1) * ring)
        data = os.pread(self._descriptor, split - begin, DATA + begin % ring) if head > begin else b""
        if split < head:
            data += os.pread(self._descriptor, head - split, DATA)
        self._position = head
        kept = max(begin, self._read_position(TAIL))
        return list(self._parse(data[kept - begin :], kept))

    def _read_position(self, offset: int) -> int:
        return POSITION.unpack(os.pread(self._descriptor, POSITION.size, offset))[0]

    def _parse(self, data: bytes, begin: int) -> Iterator[Record]:
        at = 0
        while at + ALIGNMENT <= len(data):
            if data[at : at + 4] == SKIP:
                at += self._capacity - (begin + at) % self._capacity
                continue
            if at + RECORD.size > len(data):
                raise self._damaged(begin + at)
            size, flags, name_size, _, monotonic_ns = RECORD.unpack_from(data, at)
            middle = at + RECORD.size + name_size
            name, frame = data[at + RECORD.size : middle].decode(errors="replace"), data[middle : middle + size]
            if len(frame) < max(size, HEADER.size) or kind_of(name) not in DECODERS:
                raise self._damaged(begin + at)
            wall_ns = self.wall_ns + monotonic_ns - self.begun_ns
            yield Record(self.process, self.pid, bool(flags & IS_SENT), name, monotonic_ns, wall_ns, frame)
            at += padded(RECORD.size + name_size + size)

    def _damaged(self, position: int) -> FrameFileError:
        return FrameFileError(f"{self.path} is damaged: there is no complete frame at byte {DATA + position}")


def read_records(readers: Iterable[FrameReader]) -> list[Record]:
    """Returns the records that were added to any of the files since the last call, oldest first."""
    return sorted((record for reader in readers for record in reader.read()), key=lambda record: record.monotonic_ns)


def find_readers(path: Path) -> list[FrameReader]:
    """Returns the readers of a file, or of all files of frames in a directory, ordered by their beginning.

    Raises `FrameFileError` if there is none.
    """
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise FrameFileError(f"{path} contains no files of frames (*{SUFFIX})")
    return sorted(map(FrameReader, files), key=lambda reader: reader.begun_ns)


def write_frames(path: Path, reader: FrameReader, frames: Iterable[tuple[Record, bytes]]) -> None:
    """Writes a file with the header of `reader`. Each record gets the frame next to it, of this schema version."""
    data = bytearray()
    for record, frame in frames:
        name = record.receiver.encode()
        data += RECORD.pack(len(frame), IS_SENT * record.is_sent, len(name), 0, record.monotonic_ns) + name + frame
        data += bytes(-len(data) % ALIGNMENT)
    header = bytearray(DATA)
    facts = reader.pid, SCHEMA_VERSION, reader.wall_ns, reader.begun_ns, max(len(data), ALIGNMENT)
    FILE_HEADER.pack_into(header, 0, MAGIC, FORMAT, *facts, reader.process.encode())
    POSITION.pack_into(header, HEAD, len(data))
    path.write_bytes(header + data)
