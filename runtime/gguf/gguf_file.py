"""A model in GGUF: one file, or a set of files that are its parts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messages.errors import BootError, quoted
from runtime.gguf.header import MAGIC, GgufTensor, Header, open_regular, read_header

SUFFIX = ".gguf"
MMPROJ = "mmproj"
TOWER_KINDS = ("bf16", "f16", "q8", "f32")
"""Parts of the names of vision towers, the preferred one first."""

PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
"""Names of the parts of a model, as llama.cpp writes and finds them."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The metadata of a model and its tensors by name. Each tensor has the path of its file.

    Metadata values are decoded when they are first read, which may raise `BootError`.
    """

    metadata: Mapping[str, Any]
    tensors: dict[str, GgufTensor]
    paths: tuple[Path, ...]
    header_sizes: tuple[int, ...]
    """The bytes of the header of each file."""

    @property
    def architecture(self) -> object:
        return self.metadata.get("general.architecture")


def read_gguf(path: Path) -> GgufFile:
    """Returns the model in the file `path`, in the parts of which it is the first, or in the directory `path`.

    Raises `BootError` that names the file, what is wrong, and where.
    """
    if path.is_dir():
        path = find_gguf(path)
    metadata, tensors, num_bytes = read_header(path)
    num_parts: object = metadata.get("split.count", 1)
    if not isinstance(num_parts, int) or num_parts <= 1:
        return GgufFile(metadata, tensors, (path,), (num_bytes,))
    paths, sizes = _part_paths(path, num_parts, metadata.get("split.no")), [num_bytes]
    for number, part in enumerate(paths[1:], 1):
        own = _read_part(part, (number, num_parts), metadata, tensors)
        tensors |= own.tensors
        sizes.append(own.num_bytes)
    num_tensors = metadata.get("split.tensors.count", len(tensors))
    if len(tensors) != num_tensors:
        there = f"{len(tensors)} tensors, but split.tensors.count is {quoted(num_tensors)}"
        raise BootError(f"{path}: the {num_parts} parts have {there}")
    return GgufFile(metadata, tensors, paths, tuple(sizes))


def find_gguf(directory: Path, name: str = "") -> Path:
    """Returns the file `name` in the directory, or the only model there: a file, or the first of its parts.

    Raises `BootError` if there is none, or more than one.
    """
    names = [file.name for file in directory.glob(f"*{SUFFIX}")]
    return directory / choose_name(str(directory), names, name)


def choose_name(place: str, names: list[str], requested: str = "") -> str:
    """Returns the model's name among file names of a directory or repository, `place`, as `find_gguf` does."""
    names = [name for name in names if name.endswith(SUFFIX)]
    models = sorted(name for name in names if is_model(name))
    if requested:
        if requested in names:
            return requested
        raise BootError(f"{place} has no file {requested}; it has {_listed(models)}")
    if len(models) == 1:
        return models[0]
    if not models:
        raise BootError(f"{place} has no model in GGUF")
    raise BootError(f"{place} has several models in GGUF; choose one with --gguf-file: {_listed(models)}")


def choose_mmproj(names: Iterable[str]) -> str | None:
    """Returns the name of the vision tower among file names of a directory or repository, if there is one.

    The one in 16 bits is preferred, as its larger and smaller versions are slower or less exact.
    """
    towers = sorted(name for name in names if name.startswith(MMPROJ) and name.endswith(SUFFIX))
    ranks = {name: next((rank for rank, kind in enumerate(TOWER_KINDS) if kind in name.lower()), 9) for name in towers}
    return min(towers, key=lambda name: ranks[name], default=None)


def is_gguf(path: Path) -> bool:
    """True if the file's name or its first bytes mark it as GGUF."""
    try:
        with open_regular(path) as file:
            return path.suffix == SUFFIX or file.read(len(MAGIC)) == MAGIC
    except OSError:
        return path.suffix == SUFFIX


def model_stem(path: str) -> str:
    """Returns the name of the model in a file: the file's without suffix and number."""
    name = Path(path).name
    found = PART_NAME.fullmatch(name)
    return found["stem"] if found else name.removesuffix(SUFFIX)


def part_names(name: str) -> list[str]:
    """Returns the names of all parts of a model, given that of one of them; `name` alone if it is no part."""
    found = PART_NAME.fullmatch(name)
    if found is None:
        return [name]
    count = int(found["count"])
    return [f"{found['stem']}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1)]


def is_model(name: str) -> bool:
    """Part 1 stands for its model. Image encoders (mmproj) lie with the models that they belong to."""
    found = PART_NAME.fullmatch(name)
    return not name.startswith(MMPROJ) and (found is None or int(found["number"]) == 1)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:20]) or "no model in GGUF"
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _part_paths(path: Path, num_parts: int, number: object) -> tuple[Path, ...]:
    """Returns the paths of all parts. Raises `BootError` unless `path` is the first, and all are there."""
    names = part_names(path.name)
    if number != 0:
        first = f"; give the first: {names[0]}" if len(names) == num_parts else ""
        raise BootError(f"{path}: is part {_one_based(number)} of a model in {num_parts} files{first}")
    if len(names) != num_parts or path.name != names[0]:
        raise BootError(
            f"{path}: is the first of {num_parts} files, so its name must end in -00001-of-{num_parts:05}{SUFFIX}"
        )
    paths = tuple(path.with_name(name) for name in names)
    if missing := [part.name for part in paths if not part.is_file()]:
        raise BootError(f"{path}: {len(missing)} of its {num_parts} parts are not there: {_listed(missing)}")
    return paths


def _one_based(number: object) -> object:
    return number + 1 if isinstance(number, int) else quoted(number)


def _read_part(
    path: Path, place: tuple[int, int], metadata: Mapping[str, Any], before: dict[str, GgufTensor]
) -> Header:
    """Returns the header of a part other than the first. Raises `BootError` if it belongs elsewhere."""
    header = read_header(path)
    own = header.metadata
    found = own.get("split.no"), own.get("split.count")
    if found != place:
        raise BootError(
            f"{path}: is marked as part {_one_based(found[0])} of {quoted(found[1])}, not {place[0] + 1} of {place[1]}"
        )
    key = "split.tensors.count"
    if own.get(key) != metadata.get(key):
        values = f"{quoted(own.get(key))}, but {quoted(metadata.get(key))} in the first part"
        raise BootError(f"{path}: {key} is {values}: another model's")
    if double := next((name for name in header.tensors if name in before), None):
        raise BootError(f"{path}: the tensor {double!r} is also in {before[double].path.name}: another model's part")
    return header
