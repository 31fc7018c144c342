"""Loads the files of a tokenizer, for the tokenizer and detokenizer processes."""

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from messages.errors import BootError
from runtime.forked_process import is_fork
from runtime.model_files import find_other_content
from runtime.special_tokens import CONFIG_FILE, TOKENIZER_JSON, TokenizerJson, named_tokens
from runtime.transformers_import import import_transformers

T = TypeVar("T")

log = logging.getLogger("sluice.runtime")

MAX_NAMES_SHOWN = 8
OTHER_FILES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "tokenizer_config.json")
"""Files from which `transformers` makes a tokenizer. Without any, it silently makes one with an empty vocabulary."""


def load_tokenizer(
    directory: str, from_json: Callable[[Any], T], from_transformers: Callable[[Any], T], *, is_decoder: bool = False
) -> T:
    """Returns `from_json(tokenizer)` for the `tokenizers.Tokenizer` of tokenizer.json.

    Without that file, it is the one in what `transformers` loads from the directory, or if there is none in it, this
    returns `from_transformers(what was loaded)`. Tokens that only the files next to tokenizer.json name are added, as
    in `transformers`. With `is_decoder` the tokenizer of tokenizer.json cannot encode, and loads faster. Raises
    `BootError`, which names the directory, the expected files and the error.
    """
    file = Path(directory) / TOKENIZER_JSON
    try:
        if file.is_file():
            return from_json(_read_tokenizer(file, is_decoder=is_decoder))
        if not _other_files(file.parent):
            raise FileNotFoundError(f"no {TOKENIZER_JSON}, nor any other file of a tokenizer")
        _keep_torch_out()
        transformers = import_transformers()  # takes 60 MB, which tokenizer.json saves
        loaded = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        backend = getattr(loaded, "backend_tokenizer", None)
        is_own = isinstance(backend, import_module("tokenizers").Tokenizer)
        return from_json(backend) if is_own else from_transformers(loaded)
    except BootError:
        raise
    except BaseException as error:  # plain `Exception` for most bad files; a panic is not an Exception
        raise BootError(_explain(file, error)) from error
    finally:
        return_freed_memory()


def read_tokenizer_json(directory: str) -> str:
    """Returns tokenizer.json with the tokens that `load_tokenizer` adds. Does not convert errors."""
    file = Path(directory) / TOKENIZER_JSON
    text = file.read_text(encoding="utf-8")
    known = {token.content for token in msgspec.json.decode(text, type=TokenizerJson).added_tokens}
    is_whole = all(token.content in known for token in named_tokens(file.parent))
    return text if is_whole else _read_tokenizer(file).to_str()


def _read_tokenizer(file: Path, *, is_decoder: bool = False) -> Any:
    library: Any = import_module("tokenizers")
    content = file.read_bytes()
    tokenizer = library.Tokenizer.from_buffer(_without_merges(content) if is_decoder else content)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [token for token in named_tokens(file.parent) if token.content not in known]
    tokenizer.add_tokens(
        [library.AddedToken(**{k: v for k, v in asdict(token).items() if v is not None}) for token in missing]
    )
    if missing:
        names = ", ".join(repr(token.content) for token in missing[:MAX_NAMES_SHOWN])
        log.info("%d tokens of %s are not in %s and were added: %s", len(missing), CONFIG_FILE, file.name, names)
    return tokenizer


def _without_merges(content: bytes) -> bytes:
    """Returns a tokenizer.json without the merges of a BPE, which take half of the time to load."""
    fields = msgspec.json.decode(content, type=dict[str, Raw])
    model = msgspec.json.decode(fields.get("model", b"{}"), type=dict[str, Raw])
    return msgspec.json.encode(fields | {"model": model | {"merges": []}}) if "merges" in model else content


def return_freed_memory() -> None:
    """Returns freed memory to the system (glibc only): loading a tokenizer frees several times its final size."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _keep_torch_out() -> None:
    """Makes `import torch` fail from now on: tokenizers do not need it, and it would take 220 MB.

    A forked process has a torch that is only imported as far as a scheduler needs it.
    """
    if "torch" not in sys.modules or is_fork():
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would advise the operator to install torch


def _explain(file: Path, error: BaseException) -> str:
    reason = f"{type(error).__name__}: {error}".strip()
    if file.is_file():
        return f"the tokenizer in {file} cannot be read: {find_other_content(file) or reason}"
    if not file.parent.is_dir():
        return f"no tokenizer: the directory {file.parent} does not exist; specify another one with --tokenizer"
    present = _other_files(file.parent)
    if not present:
        return (
            f"no tokenizer: {file.parent} has no {TOKENIZER_JSON}, nor any of {', '.join(OTHER_FILES)}; specify "
            "another directory with --tokenizer"
        )
    needed = [name for name in present if name.endswith(".model")]
    if needed and find_spec("sentencepiece") is None:
        return (
            f"no tokenizer: {file.parent} has no {TOKENIZER_JSON}, and {needed[0]} needs a package that is not "
            "installed: pip install sentencepiece, or save the tokenizer as tokenizer.json (AutoTokenizer in "
            "transformers, save_pretrained) into the directory"
        )
    return (
        f"no tokenizer: {file.parent} has no {TOKENIZER_JSON}, and transformers could not make one of "
        f"{', '.join(present)}; specify another directory with --tokenizer. The error of transformers: {reason}"
    )


def _other_files(directory: Path) -> list[str]:
    return [name for name in OTHER_FILES if (directory / name).is_file()]
