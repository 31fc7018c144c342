"""The flags of a server of several models, and how `--model NAME=PATH` becomes one of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from messages.config.flag import Flag, PositiveFloat
from messages.config.server import Config, ExtraConfig
from messages.errors import UsageError, errors_as, quoted

UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
PART = re.compile(rf"{NUMBER}({'|'.join(UNIT_S)})")
DURATION = re.compile(rf"([+-]?)({NUMBER}|(?:{NUMBER}(?:{'|'.join(filter(None, UNIT_S))}))+)")
MAX_DURATION_CHARS = 32
FOR_EVER_S = -1.0
LONGEST_S = 2**63 / 1e9
"""Ollama's longest time, 292 years: a longer one is for ever, as a date could not be shown."""

NAMED = re.compile(r"([^=/\\\s]+(?:/[^=/\\\s]+)?)=(.+)", re.DOTALL)
"""`NAME=PATH`; a name may be one as on the hub, with an owner."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the server. `flags`: its own, as on a command line."""

    name: str
    flags: tuple[str, ...]
    keep_alive_s: float
    """Seconds without a request until it is unloaded; negative: never."""
    preload: bool = False
    """It is loaded at the start."""
    is_on_hub: bool = False
    """It is not a file on this machine, at most one in the hub's cache."""

    @property
    def path(self) -> Path:
        """The model's file or directory."""
        return Path(next(iter(self.flags), "").removeprefix("--model="))


class ModelsConfig(ExtraConfig, frozen=True, kw_only=True):
    """Several models"""

    EXTRA: ClassVar[str] = "models"

    models: Annotated[
        tuple[str, ...],
        Flag(
            "serve several models, each loaded on its first request: a directory of models, a TOML file with a "
            "[models.NAME] table per model (model, keep-alive, preload, and flags without dashes), or NAME=PATH (also "
            "as --model NAME=PATH); other flags apply to every model",
            metavar="MODELS",
            is_short=True,
        ),
    ] = ()
    keep_alive: Annotated[
        str,
        Flag(
            "with --models: idle time after which a model is unloaded, in seconds or as 90s, 5m, 1h30m; negative: "
            "never; a request's keep_alive overrides it",
            metavar="TIME",
        ),
    ] = "5m"
    models_memory_gb: Annotated[
        PositiveFloat | None,
        Flag(
            "with --models: memory for the weights and KV caches of all loaded models in GiB; the least recently used "
            "model is unloaded to make room (default: 0.9 of the memory available at start; on a GPU, of its memory)"
        ),
    ] = None
    entries: tuple[ModelEntry, ...] = ()
    """What `models` names. Not a flag."""
    shared_flags: tuple[str, ...] = ()
    """The flags of every model. Not a flag."""

    def check(self, config: Config) -> Config:
        if not self.models:
            if self != ModelsConfig():
                raise UsageError("--keep-alive and --models-memory-gb: they go with --models")
            return config
        with errors_as(UsageError, "--keep-alive", of=ValueError):
            parse_duration(self.keep_alive)
        return config


def parse_duration(text: str) -> float:
    """Returns the seconds in a text as Ollama has it: `90`, `90s`, `1h30m`; negative means for ever.

    Raises `ValueError`, with a sentence.
    """
    found = DURATION.fullmatch(text.strip()) if len(text) <= MAX_DURATION_CHARS else None
    if found is None:
        raise ValueError(f"{quoted(text)} is not a time: expected seconds, or a text such as 90s, 5m, 1h30m or -1")
    seconds = sum(float(number) * UNIT_S[unit] for number, unit in PART.findall(found[2]))
    return FOR_EVER_S if (found[1] == "-" and seconds) or seconds > LONGEST_S else seconds


def name_models(arguments: Sequence[str]) -> list[str]:
    """Returns a command line in which `--model NAME=PATH` is `--models NAME=PATH`; others stay as they are.

    Raises `UsageError` for several models without names.
    """
    values: list[str] = []
    kept: list[str] = []
    for before, word in zip(("", *arguments), arguments, strict=False):
        if before == "--model" or word.startswith("--model="):
            values.append(word.removeprefix("--model="))
        elif word != "--model":
            kept.append(word)
    named = [value for value in values if NAMED.fullmatch(value) and not _is_path(value)]
    if not named:
        return list(arguments)
    if other := next((value for value in values if value not in named), None):
        raise UsageError(f"--model: {other} has no name; with several models each is given as NAME=PATH")
    return [*kept, *(f"--models={value}" for value in values)]


def _is_path(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError):
        return False
