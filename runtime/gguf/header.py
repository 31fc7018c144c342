"""Reads the header of a GGUF file: metadata and tensor table (ggml's docs/gguf.md), little-endian, versions 2 and 3.

Every length is checked against the file before anything is read or allocated by it.
"""

import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from messages.errors import BootError, quoted
from runtime.gguf.block_types import BLOCK_TYPES, BlockType
from runtime.model_files import find_other_content

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 << 20
MAX_ENTRIES = 1 << 21
"""The maximum size of an array that is read. The largest vocabularies have 300,000 tokens and 600,000 merges."""

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = 1 << 10

MAX_NAME_BYTES = 64
"""Tensor names are shorter: ggml's GGML_MAX_NAME."""

MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

STRING, ARRAY = 8, 9
NUMBER_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The codes of module `struct` for the types of metadata values that are numbers."""

READ_U32 = struct.Struct("<I").unpack_from
READ_U64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a file. `shape` has rows first, as torch has it; `offset` is from the beginning of the file."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    path: Path
    offset: int
    num_bytes: int


class HeaderReader:
    """Reads one value after another. A fault is a `BootError` that names the file, `subject` and the byte."""

    def __init__(self, path: Path, data: mmap.mmap, num_file_bytes: int):
        self.path = path
        self.data = data
        self.num_file_bytes = num_file_bytes
        self.position = 0
        self.subject = "header"

    def fault(self, what: str) -> BootError:
        return BootError(f"{self.path}: {self.subject}, at byte {self.position}: {what}")

    def advance(self, num_bytes: int) -> int:
        """Moves past `num_bytes` bytes that the file must have. Returns the position before them."""
        position = self.position
        if position + num_bytes > len(self.data):
            if num_bytes < self.num_file_bytes - position:
                raise self.fault(f"the header is longer than {MAX_HEADER_BYTES} bytes")
            raise self.fault(f"{num_bytes} bytes are due here, but the file ends at byte {self.num_file_bytes}")
        self.position = position + num_bytes
        return position

    def u32(self) -> int:
        return READ_U32(self.data, self.advance(4))[0]

    def u64(self) -> int:
        return READ_U64(self.data, self.advance(8))[0]

    def text(self, max_bytes: int = MAX_HEADER_BYTES, errors: str = "strict") -> str:
        num_bytes = self.u64()
        if num_bytes > max_bytes:
            raise self.fault(f"a text of {num_bytes} bytes; the limit is {max_bytes}")
        begin = self.advance(num_bytes)
        return self._decoded([self.data[begin : begin + num_bytes]], errors)[0]

    def value(self) -> Any:
        """Reads a metadata value, type first."""
        kind = self.u32()
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, count = self.u32(), self.u64()
            if count > MAX_ENTRIES:
                raise self.fault(f"an array of {count} entries; the limit is {MAX_ENTRIES}")
            return self._decoded(self._texts(count)) if kind == STRING else self._numbers(kind, count)
        return self._numbers(kind, 1)[0]

    def skip_value(self) -> None:
        """Moves past a metadata value, of which nothing is decoded."""
        kind = self.u32()
        if kind == STRING:
            self.advance(self.u64())
        elif kind == ARRAY:
            kind, count = self.u32(), self.u64()
            if kind == STRING:
                self._skip_texts(count)
            else:
                self.advance(count * self._num_bytes(kind))
        else:
            self.advance(self._num_bytes(kind))

    def _num_bytes(self, kind: int) -> int:
        if kind == ARRAY:
            raise self.fault("an array of arrays is not supported")
        if kind not in NUMBER_CODES:
            raise self.fault(f"there is no value type {kind}")
        return struct.calcsize(f"<{NUMBER_CODES[kind]}")

    def _numbers(self, kind: int, count: int) -> list[Any]:
        begin = self.advance(count * self._num_bytes(kind))
        return list(struct.unpack_from(f"<{count}{NUMBER_CODES[kind]}", self.data, begin))

    def _skip_texts(self, count: int) -> None:
        self.advance(8 * count)  # for the lengths at least
        self.position -= 8 * count
        position, data = self.position, self.data
        try:
            for _ in range(count):
                position += 8 + READ_U64(data, position)[0]
        except (struct.error, OverflowError):  # it is beyond the end
            position += 8
        self.advance(position - self.position)

    def _texts(self, count: int) -> list[bytes]:
        """Reads texts that `_skip_texts` has passed before."""
        position, data = self.position, self.data
        texts: list[bytes] = []
        for _ in range(count):
            begin = position + 8
            position = begin + READ_U64(data, position)[0]
            texts.append(data[begin:position])
        return texts

    def _decoded(self, texts: list[bytes], errors: str = "strict") -> list[str]:
        try:
            return [text.decode(errors=errors) for text in texts]
        except UnicodeDecodeError as error:
            raise self.fault(f"the text {error.object[:20]!r} is not UTF-8") from None


class Metadata(Mapping[str, Any]):
    """The metadata of a file by key. A value is decoded when it is first read, which may raise `BootError`."""

    def __init__(self, reader: HeaderReader, positions: dict[str, int]):
        self._reader = reader
        self._positions = positions
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._reader.position = self._positions[key]
            self._reader.subject = f"metadata {quoted(key)}"
            self._values[key] = self._reader.value()
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)


class Header(NamedTuple):
    """The header of one file, which has this many bytes."""

    metadata: Metadata
    tensors: dict[str, GgufTensor]
    num_bytes: int


def read_header(path: Path) -> Header:
    """Returns the header of one file. Raises `BootError` if it is damaged or no GGUF file."""
    reader = _open(path)
    num_tensors, num_keys = _read_counts(reader)
    metadata = _find_values(reader, num_keys)
    table = reader.position
    alignment = _alignment(reader, metadata)
    reader.position = table
    described = _read_table(reader, num_tensors)
    num_bytes = reader.position
    tensors = _place_tensors(reader, described, alignment)
    return Header(metadata, {tensor.name: tensor for tensor in tensors}, num_bytes)


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to read. Raises `OSError` for a pipe, which would be waited for, or another device."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _open(path: Path) -> HeaderReader:
    try:
        with open_regular(path) as file:
            beginning = file.read(len(MAGIC))
            if beginning != MAGIC:
                what = find_other_content(path) or f"is not a GGUF file: it begins with {beginning!r}, not {MAGIC!r}"
                raise BootError(f"{path}: {what}")
            num_bytes = file.seek(0, os.SEEK_END)
            data = mmap.mmap(file.fileno(), min(num_bytes, MAX_HEADER_BYTES), access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        link = f" (a link to {path.readlink()})" if path.is_symlink() else ""
        raise BootError(f"{path}{link}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return HeaderReader(path, data, num_bytes)


def _read_counts(reader: HeaderReader) -> tuple[int, int]:
    """Reads the beginning of the file. Returns the numbers of tensors and of metadata keys."""
    reader.advance(len(MAGIC))
    version = reader.u32()
    if version & 0xFFFF == 0 and version:
        raise reader.fault("the file is big-endian; convert it with llama.cpp's gguf_convert_endian.py")
    if version not in VERSIONS:
        raise reader.fault(f"version {version} of the format; supported are {' and '.join(map(str, VERSIONS))}")
    counts = reader.u64(), reader.u64()
    for count, limit, what in zip(counts, (MAX_TENSORS, MAX_KEYS), ("tensors", "metadata keys"), strict=True):
        if count > limit:
            raise reader.fault(f"{count} {what}; the limit is {limit}")
    return counts


def _find_values(reader: HeaderReader, num_keys: int) -> Metadata:
    positions: dict[str, int] = {}
    for index in range(num_keys):
        reader.subject = f"metadata key {index + 1} of {num_keys}"
        key = reader.text(MAX_KEY_BYTES, errors="surrogateescape")
        reader.subject = f"metadata {quoted(key)}"
        if key in positions:
            raise reader.fault("the key is there twice")
        positions[key] = reader.position
        reader.skip_value()
    return Metadata(reader, positions)


def _alignment(reader: HeaderReader, metadata: Metadata) -> int:
    alignment: object = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise reader.fault(f"{quoted(alignment)} is not a power of two")
    return alignment


Described = dict[str, tuple[BlockType, tuple[int, ...], int]]
"""Type, shape and offset of tensors by name."""


def _read_table(reader: HeaderReader, num_tensors: int) -> Described:
    described: Described = {}
    for index in range(num_tensors):
        reader.subject = f"tensor {index + 1} of {num_tensors}"
        name = reader.text(MAX_NAME_BYTES)
        reader.subject = f"tensor {name!r}"
        if name in described:
            raise reader.fault("the tensor is there twice")
        shape = _read_shape(reader)
        described[name] = _read_type(reader, shape), shape, reader.u64()
    return described


def _place_tensors(reader: HeaderReader, described: Described, alignment: int) -> list[GgufTensor]:
    """Returns the tensors of the table, which ends here. Checks that each lies in the file, and no two overlap."""
    begin = end = -(-reader.position // alignment) * alignment
    tensors: list[GgufTensor] = []
    for name, (block_type, shape, offset) in sorted(described.items(), key=lambda item: item[1][2]):
        reader.subject, reader.position = f"tensor {name!r}", begin + offset
        num_bytes = prod(shape) // block_type.block_values * block_type.block_bytes
        if offset % alignment:
            raise reader.fault(f"its offset {offset} is not a multiple of {alignment}")
        if reader.position + num_bytes > reader.num_file_bytes:
            raise reader.fault(f"its {num_bytes} bytes go beyond the end of the file at byte {reader.num_file_bytes}")
        if reader.position < end:
            raise reader.fault(f"it overlaps the tensor {tensors[-1].name!r}, which ends at byte {end}")
        end = reader.position + num_bytes
        tensors.append(GgufTensor(name, block_type, shape, reader.path, reader.position, num_bytes))
    return tensors


def _read_shape(reader: HeaderReader) -> tuple[int, ...]:
    """Reads the dimensions, which the file has in the reverse of torch's order."""
    num_dimensions = reader.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise reader.fault(f"it has {num_dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(reader.u64() for _ in range(num_dimensions))[::-1]
    if prod(shape) not in range(1, 1 << 63):
        raise reader.fault(f"a shape of {list(shape)} is not possible")
    return shape


def _read_type(reader: HeaderReader, shape: tuple[int, ...]) -> BlockType:
    number = reader.u32()
    block_type = BLOCK_TYPES.get(number)
    if block_type is None:
        raise reader.fault(f"there is no tensor type {number}, or this version does not know it")
    if shape[-1] % block_type.block_values:
        raise reader.fault(
            f"its rows of {shape[-1]} values are not divisible by the {block_type.block_values} of a block of "
            f"{block_type.name}"
        )
    return block_type
