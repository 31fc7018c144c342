"""The weight files of a model directory, read one tensor at a time."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from messages.errors import BootError
from runtime.gguf.conversion import list_tensors
from runtime.gguf.gguf_file import read_gguf
from runtime.model_files import WEIGHT_FILES, read_object
from scheduler_proc.computing.loading.sources.gguf_part import GgufPart
from scheduler_proc.computing.loading.sources.pickle_file import PickleFile
from scheduler_proc.computing.loading.sources.safetensors_file import SafetensorsFile
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS, StoredTensor, TensorFile

SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
WRAPPERS = re.compile(r"(^|\.)((_orig_mod|module)\.)+")
"""Prefixes that torch.compile and DataParallel add to names."""

LANGUAGE_MODEL = re.compile(r"^(model\.)?(language|text)_model\.")
"""Prefixes of the language model's names in a multimodal model."""

MAX_SHOWN = 6
READERS: dict[str, Callable[[Path], TensorFile]] = {"safetensors": SafetensorsFile, "pt": PickleFile}
"""By load format."""

log = logging.getLogger("sluice.weights")


class Checkpoint:
    """The tensors of a checkpoint by their usual names; `files` maps each to its file, `paths` are all files.

    `forms` are those of the tensors that are not plain numbers; `None` if only reading a tensor shows it. `absent` are
    the files, by tensor, that an index names and that are not here: those of a pipeline's other stages.
    """

    def __init__(
        self, paths: list[Path], open_file: Callable[[Path], TensorFile], absent: Mapping[str, Path] | None = None
    ):
        self.paths, self._open_file = paths, open_file
        forms_in = {path: open_file(path).forms() for path in paths}
        files = {name: path for path, forms in forms_in.items() for name in forms} | dict(absent or {})
        self._name_in_file = {usual_name(name): name for name in files}
        if len(self._name_in_file) < len(files):  # two tensors would have the same name
            self._name_in_file = dict(zip(files, files, strict=True))
        self.files = {name: files[in_file] for name, in_file in self._name_in_file.items()}
        forms = {name: form for forms in forms_in.values() for name, form in forms.items()}
        self.forms: dict[str, str | None] = {
            name: forms.get(in_file, NUMBERS) for name, in_file in self._name_in_file.items()
        }
        for name, in_file in self._name_in_file.items():
            if name != in_file:
                log.info("names in the checkpoint are read as usual ones: %s is %s", in_file, name)
                break

    def read(self, requested: set[str]) -> Iterator[tuple[str, StoredTensor]]:
        """Yields the wanted tensors, file by file, each backed by the mapped file until it is copied elsewhere.

        Raises `BootError` if a file cannot be read.
        """
        names_of: dict[Path, list[str]] = {}
        for name in sorted(requested):
            names_of.setdefault(self.files[name], []).append(name)
        for path in sorted(names_of.keys() - set(self.paths)):
            raise BootError(f"{path}: is not here, but the index of the weights names it; is the download complete?")
        for path, names in names_of.items():
            in_file = [self._name_in_file[name] for name in names]
            tensors = self._open_file(path).read(in_file)
            yield from ((name, tensor) for name, (_, tensor) in zip(names, tensors, strict=True))


def usual_name(name: str) -> str:
    """Returns a tensor's name in a checkpoint of only the language model, without torch's wrappers."""
    return LANGUAGE_MODEL.sub(r"\1", WRAPPERS.sub(r"\1", name))


def open_checkpoint(model_dir: Path, load_format: Literal["auto", "safetensors", "pt", "gguf"]) -> Checkpoint:
    """Finds the weight files; `auto` prefers safetensors. Raises `BootError`, which names the files looked for.

    As in `transformers`, a single complete file takes precedence over the index of several.
    """
    formats = [name for name in READERS if load_format in ("auto", name)]
    looked_for = [WEIGHT_FILES["gguf"].whole] * (load_format in ("auto", "gguf"))
    for file_format in formats:
        single, open_file = model_dir / WEIGHT_FILES[file_format].whole, READERS[file_format]
        index = single.with_name(f"{single.name}.index.json")
        looked_for += [single.name, index.name]
        if single.is_file():
            if index.is_file():
                log.warning("%s holds the whole model and is loaded; %s is not used", single, index.name)
            return Checkpoint([single], open_file)
        if index.is_file():
            return _open_index(index, open_file)
        shards = _find_shards(single)
        if shards:
            log.warning("%s is missing: all %d shards next to it are loaded", index, len(shards))
            return Checkpoint(shards, open_file)
    if load_format in ("auto", "gguf") and any(model_dir.glob(WEIGHT_FILES["gguf"].pattern)):
        file = read_gguf(model_dir)
        return Checkpoint(list(file.paths), partial(GgufPart, tensors=list_tensors(file)))
    raise BootError(
        f"no weights in {model_dir}: looked for {', '.join(looked_for)} (--load-format {load_format}); --load-format "
        "dummy runs with random weights"
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


def _open_index(index: Path, open_file: Callable[[Path], TensorFile]) -> Checkpoint:
    """Opens the files that the index names; which tensors are in them, they say themselves."""
    fields = read_object(index)
    try:
        paths = {str(name): index.parent / str(shard) for name, shard in fields["weight_map"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise BootError(f"{index}: is not an index of weight files ({type(error).__name__}: {error})") from None
    absent = {name: path for name, path in paths.items() if not path.is_file()}
    for path in paths.values():
        if path.parent != index.parent or len(absent) == len(paths):
            shard = os.path.relpath(path, index.parent)
            raise BootError(f"{index}: names {shard}, which is not a file in {index.parent}; is the download complete?")
    return Checkpoint(sorted(set(paths.values()) - set(absent.values())), open_file, absent)
