"""The model directory of a model in GGUF, kept in the user's cache: written once for a file as it is."""

import atexit
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from enum import Flag, auto
from functools import partial
from math import prod
from pathlib import Path

from msgspec.structs import replace

import runtime.gguf
import supervisor.model.gguf
from messages.config.server import ModelFacts
from messages.errors import BootError, SluiceError
from runtime.gguf.conversion import IN_BLOCKS, is_in_blocks, read_config
from runtime.gguf.gguf_file import GgufFile, part_names, read_gguf
from runtime.model_files import WEIGHT_FILES
from supervisor.child import how_it_ended
from supervisor.console import Console
from supervisor.model.gguf.cache import MAX_STEM_CHARS, Source, cache_dir, find_cached, publish
from supervisor.model.gguf.generation import read_generation_config, write_chat_templates
from supervisor.model.gguf.pooling import write_pooling
from supervisor.model.gguf.tokenizer.tokenizer_json import write_tokenizer
from supervisor.python_process import python_command, python_environment

CODE = (runtime.gguf, supervisor.model.gguf)
TEMPORARY = "sluice-gguf-"
"""Begins the names of directories that are moved to the run directory."""

CHECK, CHECK_TIMEOUT_S = "scheduler_proc.computing.loading.gguf_check", 60.0

log = logging.getLogger("sluice.gguf")


class Parts(Flag):
    """What a directory is for: the model without its tokenizer, the tokenizer, or both."""

    MODEL = auto()
    TOKENIZER = auto()


def find_directory(path: Path, parts: Parts, console: Console | None = None) -> Path:
    """Returns the directory with these parts of the model in `path`, after writing it if there is none yet.

    It lies in the cache, or is temporary if the cache cannot be written (`move_temporary`). Raises `BootError` that
    names the file for one that cannot be served.
    """
    path = path.resolve()
    with _naming(path):
        return _find_directory(path, parts, console)


def _find_directory(path: Path, parts: Parts, console: Console | None) -> Path:
    paths = [path.with_name(name) for name in part_names(path.name)]
    name = path.stem[:MAX_STEM_CHARS]
    with suppress(OSError):  # `read_gguf` reports what is missing
        sizes = [(str(file), file.stat().st_size) for file in paths]
        key = hashlib.sha256(repr((sizes, parts, _code_digest())).encode(errors="surrogateescape")).hexdigest()[:16]
        name = f"{name}-{key}"
        if directory := find_cached(name, paths):
            return directory
    if console is not None:
        console.show(f"reading {path}: its configuration and tokenizer go to {cache_dir()}")
    model = read_gguf(path)
    if Parts.MODEL in parts:
        _check_tensors(path)
    try:
        return publish(name, Source.of(model), partial(_write, model, parts))
    except OSError as error:
        if console is not None:
            failure = f"{cache_dir()} cannot be written ({error.strerror})"
            console.show(f"{failure}: the model is read at each start", "warning")
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


def _check_tensors(path: Path) -> None:
    """Raises `BootError` if the file lacks tensors, or has others than its model, as a process of its own finds out."""
    try:
        found = subprocess.run(
            [*python_command(CHECK), os.fspath(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=python_environment(),
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BootError(f"the check of its tensors took more than {CHECK_TIMEOUT_S:g} s") from None
    if found.returncode:
        text = found.stdout.decode(errors="replace").strip()
        raise BootError(text or f"the process that checks its tensors {how_it_ended(found.returncode)}")


def _write(model: GgufFile, parts: Parts, directory: Path) -> None:
    if Parts.MODEL in parts:
        config = read_config(model) | {IN_BLOCKS: is_in_blocks(model)}
        _write_json(directory / "config.json", config)
        _write_json(directory / "generation_config.json", read_generation_config(model.metadata))
        write_pooling(model, directory)
        for name, path in zip(_link_names(model.paths), model.paths, strict=True):
            (directory / name).symlink_to(path)
    if Parts.TOKENIZER in parts:
        num_tokens = write_tokenizer(model.metadata, directory)
        write_chat_templates(model.metadata, directory)
        if Parts.MODEL in parts:
            _check_rows(model, num_tokens)


def _check_rows(model: GgufFile, num_tokens: int) -> None:
    """Raises `BootError` unless each token has a row, and each row is a token's, as llama.cpp requires."""
    tensor = model.tensors["token_embd.weight"]
    if (num_rows := prod(tensor.shape[:-1])) != num_tokens:
        tokens = f"tokenizer.ggml.tokens has {num_tokens} tokens"
        raise BootError(f"tensor {tensor.name!r} has {num_rows} rows, but {tokens}")


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Makes each error a `BootError` that names the file, also those that no one has thought of."""
    try:
        yield
    except SluiceError as error:
        raise error if str(error).startswith(str(path.parent)) else BootError(f"{path}: {error}") from None
    except MemoryError:
        raise BootError(f"{path}: there is not enough memory to read it") from None
    except Exception as error:
        log.debug("%s cannot be read", path, exc_info=True)
        raise BootError(f"{path}: cannot be read ({type(error).__name__}: {str(error)[:200]})") from error


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
