"""The model directory of a model in GGUF, kept in the user's cache: written once, found by the file's size and time."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from enum import Flag, auto
from pathlib import Path

from msgspec.structs import replace

import runtime.gguf
import supervisor.model.gguf
from messages.config.server import ModelFacts
from messages.errors import BootError
from runtime.gguf.conversion import IN_BLOCKS, is_in_blocks, list_tensors, read_config
from runtime.gguf.gguf_file import GgufFile, part_names, read_gguf
from runtime.model_files import WEIGHT_FILES
from runtime.own_directory import is_own_directory, own_directory
from supervisor.console import Console
from supervisor.model.gguf.generation import read_generation_config, write_chat_templates
from supervisor.model.gguf.tokenizer.tokenizer_json import write_tokenizer

CODE = (runtime.gguf, supervisor.model.gguf)
TEMPORARY = "sluice-gguf-"
"""Begins the names of directories that are moved to the run directory."""


class Parts(Flag):
    """What a directory is for: the model without its tokenizer, the tokenizer, or both."""

    MODEL = auto()
    TOKENIZER = auto()


def find_directory(path: Path, parts: Parts, console: Console | None = None) -> Path:
    """Returns the directory with these parts of the model in `path`, after writing it if there is none yet.

    It lies in the cache, or is temporary if the cache cannot be written (`move_temporary`). Raises `BootError` for a
    file that cannot be served.
    """
    path = path.resolve()
    try:
        files = [path.with_name(name) for name in part_names(path.name)]
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError:
        stats = []  # `read_gguf` reports what is missing
    key = hashlib.sha256(repr((stats, parts, _code_digest())).encode()).hexdigest()[:24]
    parent = cache_dir()
    directory = parent / f"{path.stem}-{key}"
    if is_own_directory(parent) and is_own_directory(directory):
        return directory
    if console is not None:
        console.say(f"reading {path}: its configuration and tokenizer go to {directory}")
    model = read_gguf(path)
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_directory(parent):
            return _publish(model, parts, directory)
    except OSError as error:
        if console is not None:
            console.say(f"{parent} cannot be written ({error.strerror}): the model is read at each start", "warning")
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        _write(model, parts, temporary)
        return temporary


def move_temporary(facts: ModelFacts, run_dir: Path) -> ModelFacts:
    """Moves temporary directories to the run directory, with which they end. Returns the facts with the new paths."""

    def moved(directory: str) -> str:
        path = Path(directory)
        if path.parent != Path(tempfile.gettempdir()) or not path.name.startswith(TEMPORARY):
            return directory
        if path.is_dir():
            shutil.move(path, run_dir)
        return str(run_dir / path.name)

    draft = facts.draft and replace(facts.draft, model_dir=moved(facts.draft.model_dir))
    return replace(facts, model_dir=moved(facts.model_dir), tokenizer_dir=moved(facts.tokenizer_dir), draft=draft)


def cache_dir() -> Path:
    """Returns the directory for model directories; it need not exist. Without a home directory it cannot be created."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice" / "gguf"
    except RuntimeError:
        return Path(os.devnull) / "sluice"


def _publish(model: GgufFile, parts: Parts, directory: Path) -> Path:
    """Writes the directory, which appears atomically. If another launcher was faster, returns its directory."""
    written = Path(tempfile.mkdtemp(dir=directory.parent, prefix="part-"))
    try:
        _write(model, parts, written)
        with suppress(FileExistsError):
            written.rename(directory)
    except OSError:
        if not is_own_directory(directory):
            raise
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return directory


def _write(model: GgufFile, parts: Parts, directory: Path) -> None:
    with _naming(model.paths[0]):
        _write_parts(model, parts, directory)


def _write_parts(model: GgufFile, parts: Parts, directory: Path) -> None:
    if Parts.MODEL in parts:
        list_tensors(model)  # which refuses a model with tensors that are not known
        _write_json(directory / "config.json", read_config(model) | {IN_BLOCKS: is_in_blocks(model)})
        _write_json(directory / "generation_config.json", read_generation_config(model.metadata))
        for name, path in zip(_link_names(model.paths), model.paths, strict=True):
            (directory / name).symlink_to(path)
    if Parts.TOKENIZER in parts:
        write_tokenizer(model.metadata, directory)
        write_chat_templates(model.metadata, directory)


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Makes each `BootError` name the file."""
    try:
        yield
    except BootError as error:
        raise error if str(error).startswith(str(path)) else BootError(f"{path}: {error}") from None


def _link_names(paths: Sequence[Path]) -> list[str]:
    whole = WEIGHT_FILES["gguf"].whole
    return part_names(f"{Path(whole).stem}-00001-of-{len(paths):05}.gguf") if len(paths) > 1 else [whole]


def _write_json(file: Path, fields: object) -> None:
    file.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _code_digest() -> str:
    """Returns a digest of the code that makes the directory: other code may write other files."""
    digest = hashlib.sha256()
    for package in CODE:
        for file in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
