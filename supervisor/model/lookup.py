"""Turns `--model` and `--tokenizer` into directories: bundled, local, or fetched from the hub by a child process.

A file in GGUF becomes a directory in the user's cache.
"""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from messages.config.server import ModelConfig
from messages.errors import BootError, UsageError
from runtime.gguf.gguf_file import find_gguf, is_gguf, model_stem
from runtime.model_files import WEIGHT_FILES
from supervisor.child import how_it_ended
from supervisor.console import Console
from supervisor.model.gguf.model_directory import Parts, find_directory
from supervisor.python_process import ROOT, python_command, python_path

CHAT_MODEL = ROOT / "assets" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.gguf"
"""Put there by `make serve` (`tools/fetch_chat_model.py`)."""

BUNDLED_MODEL = ROOT / "assets" / "shakespeare-gpt2"
OTHER_WEIGHTS = [files.pattern for name, files in WEIGHT_FILES.items() if name != "gguf"]


class Wanted(NamedTuple):
    """A model to find, as `flag` names it. `kind` is one of those of `WantedModel`; `gguf_file` chooses among files."""

    flag: str
    name: str
    kind: str
    parts: Parts = Parts.MODEL | Parts.TOKENIZER
    revision: str = "main"
    gguf_file: str = ""


def find_model(model: ModelConfig, console: Console | None = None) -> Path:
    """Returns the directory of the model; `console` shows a download.

    Raises `UsageError` or `BootError` if there is none.
    """
    if not model.model and model.gguf_file:
        raise UsageError("--gguf-file: of which --model?")
    name = model.model or str(_find_default())
    parts = Parts.MODEL if model.tokenizer else Parts.MODEL | Parts.TOKENIZER
    return _find(Wanted("--model", name, _kind(model), parts, model.revision, model.gguf_file), console)


def find_tokenizer(model: ModelConfig, model_dir: Path, console: Console | None = None) -> Path:
    """Returns the directory of the tokenizer, by default the model's."""
    if not model.tokenizer:
        return model_dir
    return _find(Wanted("--tokenizer", model.tokenizer, "tokenizer", Parts.TOKENIZER), console)


def find_draft_model(name: str, model: ModelConfig, console: Console | None = None) -> Path:
    """Returns the directory of the draft model."""
    return _find(Wanted("--draft-model", name, _kind(model)), console)


def model_name(model: ModelConfig) -> str:
    """Returns the name under which clients know the model if no flag gives one: of a file, without its suffix."""
    if not model.model:
        return _find_default().stem
    name = model.model.rstrip("/")
    return model_stem(name) if Path(name).expanduser().is_file() else name


def _find_default() -> Path:
    """Returns the chat model's file, or the bundled directory if it was not fetched."""
    for path in (CHAT_MODEL, BUNDLED_MODEL):
        if path.exists():
            return path
    raise BootError(f"the bundled model is not in {BUNDLED_MODEL}; give a model with --model")


def _kind(model: ModelConfig) -> str:
    return "none" if model.load_format == "dummy" else model.load_format


def check_is_utf8(flag: str, text: str) -> None:
    """Raises `UsageError` for a path or name that is not UTF-8, so that no message can have it."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{flag}: {os.fsencode(text)!r} is not UTF-8; rename it, or make a link to it and name that")


def _find(requested: Wanted, console: Console | None) -> Path:
    """Returns the directory of the model, which may be one that is written for a file in GGUF."""
    flag, name = requested.flag, requested.name
    check_is_utf8(flag, name)
    path = Path(name).expanduser()
    check_is_utf8(flag, str(path.absolute()))
    if path.is_dir():
        found = find_gguf(path, requested.gguf_file) if _is_for_gguf(requested, path) else path.absolute()
    elif path.exists():
        if not path.is_file():
            raise UsageError(f"{flag}: {name} is neither a directory nor a file, but a pipe, a socket or a device")
        if not is_gguf(path):
            raise UsageError(
                f"{flag}: {name} is a file, but not in GGUF; give the directory with config.json and weights"
            )
        if requested.gguf_file:
            raise UsageError(
                f"--gguf-file chooses among the files of a directory or a repository, but {name} is a file"
            )
        found = path
    elif is_path_like(name):
        raise UsageError(f"{flag}: there is no directory or file {path.absolute()}")
    else:
        found = _fetch(requested, console)
    check_is_utf8(flag, str(found))
    if found.is_dir():
        return found
    if requested.kind in ("safetensors", "pt"):
        raise UsageError(f"--load-format {requested.kind}: {found} is in GGUF; leave the flag out")
    return find_directory(found, requested.parts, console)


def _is_for_gguf(requested: Wanted, directory: Path) -> bool:
    """True if the directory's model is to be read from GGUF. Many such directories hold a config.json besides."""
    if requested.gguf_file or requested.kind == "gguf":
        return True
    others = ("tokenizer.json", "tokenizer.model") if requested.kind == "tokenizer" else OTHER_WEIGHTS
    has_others = any(any(directory.glob(pattern)) for pattern in others)
    return not has_others and any(directory.glob("*.gguf"))


def is_path_like(name: str) -> bool:
    """A hub name is NAME or OWNER/NAME; any other text was meant as a path."""
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1


def _fetch(requested: Wanted, console: Console | None) -> Path:
    """Runs the look-up on the hub in a process of its own, which can be cut off and keeps this one light.

    Returns a directory, or the file of a model in GGUF.

    It draws its own bars on a terminal; where lines are JSON, what it writes comes at its end, without bars.
    """
    name = requested.name
    is_json = console is not None and console.is_json
    if console is not None:
        console.show(f"fetching {name} from the hub, or from its cache")
    flags = [f"--revision={requested.revision}", f"--requested={requested.kind}", f"--gguf-file={requested.gguf_file}"]
    result = subprocess.run(
        [*python_command("supervisor.model.fetch"), name, *flags, f"--parent-pid={os.getpid()}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if is_json else None,
        env={**os.environ, "PYTHONPATH": python_path()},
        check=False,
    )
    if console is not None and is_json:
        console.relay("launcher", os.getpid(), result.stderr.decode(errors="replace").splitlines())
    text = result.stdout.decode(errors="replace").strip()
    if result.returncode == 0:
        return Path(text)
    raise BootError(text or f"the look-up of {name} on the hub {how_it_ended(result.returncode)}")
