"""Turns `--model` and `--tokenizer` into directories: bundled, local, or fetched from the hub by a child process."""

import os
import subprocess
from pathlib import Path

from messages.config.server import ModelConfig
from messages.errors import BootError, UsageError
from supervisor.child import how_it_ended
from supervisor.console import Console
from supervisor.python_process import ROOT, python_command, python_path

CHAT_MODEL = ROOT / "assets" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.gguf"
"""Put there by `make serve` (`tools/fetch_chat_model.py`)."""

BUNDLED_MODEL = ROOT / "assets" / "shakespeare-gpt2"


def find_model(model: ModelConfig, console: Console | None = None) -> Path:
    """Returns the directory of the model; `console` shows a download.

    Raises `UsageError` or `BootError` if there is none.
    """
    if not model.model:
        if not BUNDLED_MODEL.is_dir():
            raise BootError(f"the bundled model is not in {BUNDLED_MODEL}; give a model with --model")
        return BUNDLED_MODEL
    return _find("--model", model.model, model.revision, _wanted(model), console)


def find_tokenizer(model: ModelConfig, model_dir: Path, console: Console | None = None) -> Path:
    """Returns the directory of the tokenizer, by default the model's."""
    if not model.tokenizer:
        return model_dir
    return _find("--tokenizer", model.tokenizer, "main", "tokenizer", console)


def find_draft_model(name: str, model: ModelConfig, console: Console | None = None) -> Path:
    """Returns the directory of the draft model."""
    return _find("--draft-model", name, "main", _wanted(model), console)


def model_name(model: ModelConfig) -> str:
    """Returns the name under which clients know the model if no flag gives one."""
    return model.model.rstrip("/") or BUNDLED_MODEL.name


def _wanted(model: ModelConfig) -> str:
    return "none" if model.load_format == "dummy" else model.load_format


def _find(flag: str, name: str, revision: str, wanted: str, console: Console | None) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.exists():
        raise UsageError(f"{flag}: {name} is a file; give the directory that holds config.json and the weights")
    if _is_path_like(name):
        raise UsageError(f"{flag}: there is no directory {path.absolute()}")
    return _fetch(name, revision, wanted, console)


def _is_path_like(name: str) -> bool:
    """A hub name is NAME or OWNER/NAME; any other text was meant as a path."""
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1


def _fetch(name: str, revision: str, wanted: str, console: Console | None) -> Path:
    """Runs the look-up on the hub in a process of its own, which can be cut off and keeps this one light.

    It draws its own bars on a terminal; where lines are JSON, what it writes comes at its end, without bars.
    """
    is_json = console is not None and console.is_json
    if console is not None:
        console.say(f"fetching {name} from the hub, or from its cache")
    arguments = [name, "--revision", revision, "--wanted", wanted, "--parent-pid", str(os.getpid())]
    result = subprocess.run(
        [*python_command("supervisor.model.fetch"), *arguments],
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
