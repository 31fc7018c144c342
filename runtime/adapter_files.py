"""The files of a LoRA adapter in PEFT's layout, and the digest of them that is the adapter's identity."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from messages.errors import SluiceError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
INDEX_FILE = "adapter_model.safetensors.index.json"
PICKLED_FILES = ("adapter_model.bin", "adapter_model.pt")

MAX_CONFIG_BYTES = 1 << 20
DIGEST_BYTES = 16


class AdapterError(SluiceError):
    """A directory holds no adapter that can be used. The message is for the operator who names the directory."""


class AdapterFiles(NamedTuple):
    """The contents of both files, as they were when `digest` was computed."""

    config: dict[str, Any]
    weights: bytes
    digest: str


def read_files(directory: str) -> AdapterFiles:
    """Reads the adapter in `directory`, an absolute path. The tensors are not looked at. Raises `AdapterError`."""
    path = Path(directory)
    if not path.is_absolute():
        raise AdapterError(f"{directory!r:.200} is not an absolute path of a directory on the server's machine")
    try:
        if not path.is_dir():
            raise AdapterError(f"there is no directory {directory:.200} on the server's machine")
        text = _read_file(path / CONFIG_FILE, _explain_missing(path), MAX_CONFIG_BYTES)
        weights = _read_file(path / WEIGHTS_FILE, _explain_missing(path))
    except (OSError, ValueError) as error:  # a ValueError: the path has a null byte
        raise AdapterError(f"{directory:.200} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        config = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise AdapterError(f"{path / CONFIG_FILE} is not a JSON object: {error}") from None
    digest = hashlib.blake2b(len(text).to_bytes(8, "little") + text, digest_size=DIGEST_BYTES)
    digest.update(weights)
    return AdapterFiles(config, weights, digest.hexdigest())


def _read_file(file: Path, missing: str, max_bytes: int | None = None) -> bytes:
    if not file.is_file():  # a pipe or a device would never end
        raise AdapterError(f"{file.parent} contains no {file.name}{missing}")
    if max_bytes is not None and file.stat().st_size > max_bytes:
        raise AdapterError(f"{file} is larger than {max_bytes} bytes")
    return file.read_bytes()


def _explain_missing(path: Path) -> str:
    if any((path / name).exists() for name in PICKLED_FILES):
        return ", only weights in pickle, which can run code when they are read: convert them to safetensors"
    if (path / INDEX_FILE).exists():
        return f", but weights in several files: save them as one {WEIGHTS_FILE}"
    return ": an adapter is a directory as PEFT saves it"
