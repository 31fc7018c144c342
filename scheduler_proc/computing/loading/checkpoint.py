"""The weight files of a model directory, read one tensor at a time."""

import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from messages.errors import BootError

FileFormat = Literal["safetensors", "pt"]
SINGLE_FILES: dict[FileFormat, str] = {"safetensors": "model.safetensors", "pt": "pytorch_model.bin"}


class Checkpoint:
    """The tensors of a checkpoint by name; `files` says in which file each one is."""

    def __init__(self, files: dict[str, Path], file_format: FileFormat):
        self.files = files
        self._format: FileFormat = file_format

    def read(self, wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
        """Yields the wanted tensors, file by file, each backed by the mapped file until it is copied elsewhere.

        Raises `BootError` where a file cannot be read.
        """
        names_of: dict[Path, list[str]] = {}
        for name in sorted(wanted):
            names_of.setdefault(self.files[name], []).append(name)
        for path, names in names_of.items():
            yield from _read_file(path, names, self._format)


def open_checkpoint(model_dir: Path, load_format: Literal["auto", "safetensors", "pt"]) -> Checkpoint:
    """Finds the weight files; `auto` prefers safetensors. Raises `BootError` that says what was looked for."""
    formats: tuple[FileFormat, ...] = ("safetensors", "pt") if load_format == "auto" else (load_format,)
    looked_for: list[str] = []
    for file_format in formats:
        single = model_dir / SINGLE_FILES[file_format]
        index = single.with_name(f"{single.name}.index.json")
        looked_for += [single.name, index.name]
        if index.is_file():
            return Checkpoint(_read_index(index, file_format), file_format)
        if single.is_file():
            return Checkpoint(dict.fromkeys(_list_names(single, file_format), single), file_format)
    raise BootError(
        f"no weights in {model_dir}: looked for {', '.join(looked_for)} (--load-format {load_format}); "
        "--load-format dummy runs with random weights"
    )


def _read_index(index: Path, file_format: FileFormat) -> dict[str, Path]:
    """Returns where each tensor really is; the index only names the files."""
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BootError(f"{index}: is not an index of weight files ({type(error).__name__}: {error})") from None
    files: dict[str, Path] = {}
    for shard in shards:
        path = index.parent / str(shard)
        if path.parent != index.parent or not path.is_file():
            raise BootError(f"{index}: names {shard}, which is not a file in {index.parent}; is the download complete?")
        files |= dict.fromkeys(_list_names(path, file_format), path)
    return files


def _list_names(path: Path, file_format: FileFormat) -> list[str]:
    if file_format == "pt":
        return list(_load_pt(path))
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _read_file(path: Path, names: list[str], file_format: FileFormat) -> Iterator[tuple[str, Tensor]]:
    if file_format == "pt":
        tensors = _load_pt(path)
        for name in names:
            yield name, tensors[name]
        return
    try:
        with safe_open(path, framework="pt") as file:
            for name in names:
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _load_pt(path: Path) -> dict[str, Tensor]:
    try:
        # Files of before torch 1.6 are no zip archives and cannot be mapped.
        state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(state, dict):
        raise BootError(f"{path}: does not hold named tensors")
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _unreadable(path: Path, error: Exception) -> BootError:
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return BootError(f"{path}: cannot be read, it may be cut off or damaged: {reason}")
