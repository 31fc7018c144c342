"""The files of a LoRA adapter in PEFT's layout, and the digest of them that is the adapter's identity."""

import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec

from messages.errors import SluiceError, errors_as

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
INDEX_FILE = "adapter_model.safetensors.index.json"
PICKLED_FILES = ("adapter_model.bin", "adapter_model.pt")

MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 1 << 16
MAX_WEIGHTS_BYTES = 16 << 30
"""An adapter of rank 256 for all linear layers of a model of 70 billion parameters has as many in float32."""

LENGTH_BYTES = 8
CHUNK_BYTES = 1 << 20
DIGEST_BYTES = 16
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64"), 8),
    **dict.fromkeys(("F32", "I32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}
"""Number formats of safetensors."""

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class AdapterError(SluiceError):
    """A directory holds no adapter that can be used. The message is for the operator who names the directory."""


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor in the header of a file of safetensors; `data_offsets` are those of its first byte and of its end."""

    dtype: str
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[Size, Size]


class AdapterFiles:
    """Both files of an adapter: the configuration, and the tensors of which only the header has been read."""

    def __init__(self, config: dict[str, Any], weights: BufferedReader, digest: hashlib.blake2b):
        """Raises `AdapterError` for a header that is damaged, or that is not that of the whole file."""
        self.config, self._weights, self._digest = config, weights, digest
        size = os.fstat(weights.fileno()).st_size
        length = self._read(min(LENGTH_BYTES, size))
        header_bytes = int.from_bytes(length, "little")
        if len(length) < LENGTH_BYTES or header_bytes > min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
            raise _damaged(f"its header of {header_bytes} bytes is damaged or too large")
        if size > MAX_WEIGHTS_BYTES:
            raise _damaged(f"it has {size} bytes; supported are {MAX_WEIGHTS_BYTES}")
        self.tensors = _read_header(self._read(header_bytes), size - LENGTH_BYTES - header_bytes)

    def read(self) -> Iterator[tuple[str, bytearray]]:
        """Yields the bytes of each tensor, in the order of the file. Raises `AdapterError`."""
        for name, entry in self.tensors.items():
            yield name, self._read(entry.data_offsets[1] - entry.data_offsets[0])

    def digest(self) -> str:
        """Returns the digest of both files; reads the tensors that have not been read, in little memory."""
        while chunk := self._weights.read(CHUNK_BYTES):
            self._digest.update(chunk)
        return self._digest.hexdigest()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        if self._weights.readinto(data) != size:
            raise _damaged("it has been cut off while it was read")
        self._digest.update(data)
        return data


@contextmanager
def open_files(directory: str) -> Generator[AdapterFiles]:
    """Opens the adapter in `directory`, an absolute path. Raises `AdapterError`, also for I/O errors in the block."""
    path = Path(directory)
    if not path.is_absolute():
        raise AdapterError(f"{directory!r:.200} is not an absolute path of a directory on the server's machine")
    with errors_as(AdapterError, f"{directory:.200} cannot be read"):
        if not path.is_dir():
            raise AdapterError(f"there is no directory {directory:.200} on the server's machine")
        with _open(path / CONFIG_FILE) as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise AdapterError(f"{path / CONFIG_FILE} is larger than {MAX_CONFIG_BYTES} bytes")
        config = _read_config(path / CONFIG_FILE, text)
        with _open(path / WEIGHTS_FILE) as weights:
            digest = hashlib.blake2b(len(text).to_bytes(8, "little") + text, digest_size=DIGEST_BYTES)
            yield AdapterFiles(config, weights, digest)


def read_digest(directory: str) -> str:
    """Returns the digest of the adapter in `directory`. Its shapes are not compared with a model's.

    Raises `AdapterError`.
    """
    with open_files(directory) as files:
        return files.digest()


def _open(file: Path) -> BufferedReader:
    if not file.is_file():  # a pipe or a device would never end
        raise AdapterError(f"{file.parent} contains no {file.name}{_explain_missing(file.parent)}")
    return file.open("rb")


def _read_config(file: Path, text: bytes) -> dict[str, Any]:
    with errors_as(AdapterError, f"{file} is not a JSON object", of=(msgspec.DecodeError, RecursionError)):
        return msgspec.json.decode(text, type=dict[str, Any])


def _read_header(header: bytes | bytearray, num_bytes: int) -> dict[str, TensorEntry]:
    """Returns the tensors in the order of their bytes, of which there are `num_bytes`, without gaps."""
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        if len(raw) > MAX_TENSORS:
            raise _damaged(f"it has {len(raw)} tensors; supported are {MAX_TENSORS}")
        found = {name: msgspec.json.decode(each, type=TensorEntry) for name, each in raw.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise _damaged(f"its header is damaged, or not one of safetensors: {error}") from None
    tensors = dict(sorted(found.items(), key=lambda item: item[1].data_offsets))
    end = 0
    for name, entry in tensors.items():
        if entry.dtype not in ITEM_BYTES:
            raise _damaged(f"{name:.120}: the number format {entry.dtype!r:.20} is not supported")
        begin, end_before = entry.data_offsets[0], end
        end = begin + prod(entry.shape) * ITEM_BYTES[entry.dtype]
        if begin != end_before or end != entry.data_offsets[1]:
            raise _damaged(f"{name:.120}: its bytes are not those of its shape {list(entry.shape)}")
    if end != num_bytes:
        raise _damaged(f"it is cut off or damaged: its tensors have {end} bytes, and the file has {num_bytes} for them")
    return tensors


def _damaged(reason: str) -> AdapterError:
    return AdapterError(f"{WEIGHTS_FILE}: {reason}")


def _explain_missing(path: Path) -> str:
    if any((path / name).exists() for name in PICKLED_FILES):
        return ", only weights in pickle, which can run code when they are read: convert them to safetensors"
    if (path / INDEX_FILE).exists():
        return f", but weights in several files: save them as one {WEIGHTS_FILE}"
    return ": an adapter is a directory as PEFT saves it"
