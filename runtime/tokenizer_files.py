"""Which files make a tokenizer, and in which way they are loaded; tokenizer and detokenizer both ask."""

import ctypes
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from messages.errors import BootError

T = TypeVar("T")

TOKENIZER_JSON = "tokenizer.json"
OTHER_FILES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "tokenizer_config.json")
"""Files that tell `transformers` what tokenizer to make. Without any it makes one of no words, and says nothing."""


def load_tokenizer(directory: str, from_json: Callable[[str], T], from_transformers: Callable[[Any], T]) -> T:
    """Returns what `from_json` makes of tokenizer.json or, where there is none, `from_transformers` of the tokenizer
    that `transformers` makes of the directory.

    Raises `BootError`, which says what was looked for, where, and what went wrong.
    """
    file = Path(directory) / TOKENIZER_JSON
    try:
        if file.is_file():
            return from_json(str(file))
        if not _other_files(file.parent):
            raise FileNotFoundError(f"no {TOKENIZER_JSON}, nor any other file of a tokenizer")
        _keep_torch_out()
        transformers: Any = import_module("transformers")  # 60 MB that a process with tokenizer.json saves
        return from_transformers(
            transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        )
    except BaseException as error:  # plain `Exception` for most bad files, and a panic is no Exception
        raise BootError(_explain(file, error)) from error
    finally:
        return_freed_memory()


def return_freed_memory() -> None:
    """Gives freed memory back to the system: loading a tokenizer frees several times of what stays (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _keep_torch_out() -> None:
    """Makes `import torch` fail from now on: tokenizers need none, and it would add 220 MB to the process."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would tell the operator to install torch


def _explain(file: Path, error: BaseException) -> str:
    reason = f"{type(error).__name__}: {error}".strip()
    if file.is_file():
        return f"the tokenizer in {file} cannot be read: {reason}"
    if not file.parent.is_dir():
        return f"no tokenizer: the directory {file.parent} does not exist; give another one with --tokenizer"
    present = _other_files(file.parent)
    if not present:
        return (
            f"no tokenizer: {file.parent} has no {TOKENIZER_JSON}, nor any of {', '.join(OTHER_FILES)}; give another "
            "directory with --tokenizer"
        )
    return (
        f"no tokenizer: {file.parent} has no {TOKENIZER_JSON}, and transformers could not make one of "
        f"{', '.join(present)}; give another directory with --tokenizer. transformers said: {reason}"
    )


def _other_files(directory: Path) -> list[str]:
    return [name for name in OTHER_FILES if (directory / name).is_file()]
