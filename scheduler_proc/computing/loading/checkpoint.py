"""The weight files of a model directory, read one tensor at a time."""

import logging
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from messages.errors import BootError
from runtime.model_files import find_other_content, gguf_hint, read_object

FileFormat = Literal["safetensors", "pt"]
SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
WRAPPERS = re.compile(r"(^|\.)((_orig_mod|module)\.)+")
"""Prefixes that torch.compile and DataParallel add to names."""

LANGUAGE_MODEL = re.compile(r"^(model\.)?language_model\.")
"""Prefixes of the language model's names in a multimodal model."""

MAX_SHOWN = 6
STATE_KEYS = ("state_dict", "model_state_dict", "model")
SINGLE_FILES: dict[FileFormat, str] = {"safetensors": "model.safetensors", "pt": "pytorch_model.bin"}


log = logging.getLogger("sluice.weights")


class Checkpoint:
    """The tensors of a checkpoint by their usual names; `files` maps each to its file."""

    def __init__(self, files: dict[str, Path], file_format: FileFormat):
        self._name_in_file = {usual_name(name): name for name in files}
        if len(self._name_in_file) < len(files):  # two tensors would have the same name
            self._name_in_file = dict(zip(files, files, strict=True))
        self.files = {name: files[in_file] for name, in_file in self._name_in_file.items()}
        self._format: FileFormat = file_format
        for name, in_file in self._name_in_file.items():
            if name != in_file:
                log.info("names in the checkpoint are read as usual ones: %s is %s", in_file, name)
                break

    def read(self, wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
        """Yields the wanted tensors, file by file, each backed by the mapped file until it is copied elsewhere.

        Raises `BootError` if a file cannot be read.
        """
        names_of: dict[Path, list[str]] = {}
        for name in sorted(wanted):
            names_of.setdefault(self.files[name], []).append(name)
        for path, names in names_of.items():
            in_file = [self._name_in_file[name] for name in names]
            tensors = _read_file(path, in_file, self._format)
            yield from ((name, tensor) for name, (_, tensor) in zip(names, tensors, strict=True))


def usual_name(name: str) -> str:
    """Returns a tensor's name in a checkpoint of only the language model, without torch's wrappers."""
    return LANGUAGE_MODEL.sub(r"\1", WRAPPERS.sub(r"\1", name))


def open_checkpoint(model_dir: Path, load_format: Literal["auto", "safetensors", "pt"]) -> Checkpoint:
    """Finds the weight files; `auto` prefers safetensors. Raises `BootError`, which names the files looked for.

    As in `transformers`, a single complete file takes precedence over the index of several.
    """
    formats: tuple[FileFormat, ...] = ("safetensors", "pt") if load_format == "auto" else (load_format,)
    looked_for: list[str] = []
    for file_format in formats:
        single = model_dir / SINGLE_FILES[file_format]
        index = single.with_name(f"{single.name}.index.json")
        looked_for += [single.name, index.name]
        if single.is_file():
            if index.is_file():
                log.warning("%s holds the whole model and is loaded; %s is not used", single, index.name)
            return Checkpoint(dict.fromkeys(_list_names(single, file_format), single), file_format)
        if index.is_file():
            return Checkpoint(_read_index(index, file_format), file_format)
        shards = _find_shards(single)
        if shards:
            log.warning("%s is missing: all %d shards next to it are loaded", index, len(shards))
            return Checkpoint(_names_in(shards, file_format), file_format)
    raise BootError(
        f"no weights in {model_dir}: looked for {', '.join(looked_for)} (--load-format {load_format}); "
        f"--load-format dummy runs with random weights{gguf_hint(model_dir)}"
    )


def _find_shards(single: Path) -> list[Path]:
    """Returns the shards of a checkpoint without an index. Raises `BootError` if some are missing."""
    found = {path: SHARD.search(path.stem) for path in sorted(single.parent.glob(f"{single.stem}-*{single.suffix}"))}
    numbers = {int(match[1]): path for path, match in found.items() if match}
    num_shards = max((int(match[2]) for match in found.values() if match), default=0)
    missing = [number for number in range(1, num_shards + 1) if number not in numbers]
    if missing:
        raise BootError(
            f"{single.parent}: there is no {single.name}.index.json, and of {num_shards} shards these are missing: "
            f"{', '.join(map(str, missing[:MAX_SHOWN]))}{'…' if len(missing) > MAX_SHOWN else ''}; is the download "
            "complete?"
        )
    return list(numbers.values())


def _read_index(index: Path, file_format: FileFormat) -> dict[str, Path]:
    """Returns where each tensor really is; the index only names the files."""
    fields = read_object(index)
    try:
        shards = sorted(set(fields["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise BootError(f"{index}: is not an index of weight files ({type(error).__name__}: {error})") from None
    paths = [index.parent / str(shard) for shard in shards]
    for shard, path in zip(shards, paths, strict=True):
        if path.parent != index.parent or not path.is_file():
            raise BootError(f"{index}: names {shard}, which is not a file in {index.parent}; is the download complete?")
    return _names_in(paths, file_format)


def _names_in(paths: list[Path], file_format: FileFormat) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in paths:
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
    for key in STATE_KEYS:
        if isinstance(state.get(key), dict):
            log.info("%s: the tensors are those of its %r", path, key)
            state = state[key]
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _unreadable(path: Path, error: Exception) -> BootError:
    other = find_other_content(path)
    if other is not None:
        return BootError(f"{path}: {other}")
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return BootError(f"{path}: cannot be read, it may be cut off or damaged: {reason}")
