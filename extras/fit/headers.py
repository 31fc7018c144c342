"""A model of the hub without its weights: configuration, tokenizer, and files that end after their headers in holes.

Loading code reads shapes and forms from such files as from whole ones.
"""

import struct
from pathlib import Path
from typing import Any

from huggingface_hub import HfFileSystem

from messages.config.server import ModelConfig
from messages.errors import BootError
from runtime.gguf.configs import FACTOR_TENSORS
from runtime.gguf.gguf_file import SUFFIX
from runtime.gguf.header import MAX_HEADER_BYTES, read_header
from supervisor.model.fetch import TOKENIZER_FILES, WantedModel, download, find_cached, list_weights

FIRST_BYTES = 1 << 20
"""The first read of a GGUF file. Its vocabulary may need more; each attempt doubles it."""

SAFETENSORS = ".safetensors"


def find_headers(model: ModelConfig, folder: Path) -> Path:
    """Returns the model in the hub's cache if all of it is there, else its files in `folder`, weights as headers.

    Raises `BootError`, also for weights whose files have no header.
    """
    kind = "none" if model.load_format == "dummy" else model.load_format
    requested = WantedModel(model.model, model.revision, kind, model.gguf_file)
    if cached := find_cached(requested):
        return cached
    names = list_weights(requested)
    if unreadable := [name for name in names if not name.endswith((SUFFIX, SAFETENSORS))]:
        raise BootError(
            f"{model.model} has pickled weights ({unreadable[0]}), which have no header that lists them; fetch it with "
            f"`hf download {model.model} --local-dir DIR`, then `fit DIR`, or give --load-format dummy to count them "
            "by config.json"
        )
    for name in names:
        try:
            files: Any = HfFileSystem()  # whose methods have no types
            with files.open(f"{model.model}/{name}", "rb", revision=model.revision, block_size=FIRST_BYTES) as remote:
                write_header(remote, folder / Path(name).name)
        except (OSError, ValueError, struct.error) as error:  # the library's are of these types
            raise BootError(f"the header of {model.model}/{name} cannot be read: {error}") from None
    if names and names[0].endswith(SUFFIX):
        return folder / Path(names[0]).name
    for file in download(requested, TOKENIZER_FILES).iterdir():
        if file.is_file() and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    return folder


def write_header(remote: Any, file: Path) -> None:
    """Writes a file of the size of `remote`, which is open, with nothing but its header."""
    (_write_gguf if file.suffix == SUFFIX else _write_safetensors)(remote, file)


def _write_safetensors(remote: Any, file: Path) -> None:
    (num_bytes,) = struct.unpack("<Q", beginning := remote.read(8))
    if num_bytes > MAX_HEADER_BYTES:
        raise BootError(f"{file.name}: a header of {num_bytes:,} bytes; the format allows {MAX_HEADER_BYTES:,}")
    _write(file, {0: beginning + remote.read(num_bytes)}, remote.size)


def _write_gguf(remote: Any, file: Path) -> None:
    data, num_bytes = b"", FIRST_BYTES
    while True:
        data += remote.read(num_bytes - len(data))
        _write(file, {0: data}, remote.size)
        try:
            header = read_header(file)
            is_whole = header.num_bytes <= len(data)
        except BootError:
            header, is_whole = None, False
            if len(data) >= min(remote.size, MAX_HEADER_BYTES):
                raise
        if header is not None and is_whole:
            break
        num_bytes *= 2
    factors = [header.tensors[name] for name in FACTOR_TENSORS if name in header.tensors]
    parts = {0: data}
    for tensor in factors:  # they become part of config.json
        remote.seek(tensor.offset)
        parts[tensor.offset] = remote.read(tensor.num_bytes)
    _write(file, parts, remote.size)


def _write(file: Path, parts: dict[int, bytes], num_bytes: int) -> None:
    with file.open("wb") as opened:
        for offset, data in parts.items():
            opened.seek(offset)
            opened.write(data)
        opened.truncate(num_bytes)
