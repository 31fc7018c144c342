"""The extras that are installed: `extras/NAME/__init__.py` declares what each adds, and the core finds it here.

The core runs without the folder `extras/`, and imports nothing of it by name.
"""

import functools
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from messages.config.server import Config, ExtraConfig

FOLDER = Path(__file__).resolve().parents[1] / "extras"

Place = Literal["process", "frontend", "launcher", "server"]


class ExtraCommand(NamedTuple):
    """A command of `launch.py`. `options`, as `module:function`, adds its options to a parser and sets `execute`."""

    options: str
    text: str
    needs_server: bool = False
    num_words: int = 0
    """Words before the flags of a server that it starts. With 0 those flags follow a `--`."""


class Extra(NamedTuple):
    """What an extra adds. Modules are given by name: a process imports only those that it uses."""

    name: str
    config: str = ""
    """`module:class`, an `ExtraConfig` with the flags."""
    process: str = ""
    """A module with `attach(link)`, which is called in each process of the run."""
    frontend: str = ""
    """A module with `make_part(context)`, which returns a `FrontendPart`."""
    launcher: str = ""
    """A module with `engine_commands(config)`, `write_files(config, run_dir)` and `make_part(config, group, begin,
    console)`; the `look` of a part is called in each turn of the launcher's loop."""
    server: str = ""
    """A module with `add_facts(config)` and `server_commands(config)`, in place of those of a server of one model."""
    arguments: str = ""
    """`module:function`, called with the command line of a server; returns another one. It may raise `UsageError`."""
    commands: Mapping[str, ExtraCommand] = {}
    keys: str = ""
    """`module:function`, called with the configuration; returns keys with names (`NamedKeys` in
    `frontend/requests/client.py`)."""
    listings: Mapping[str, tuple[str, str]] = {}
    """Switches of `launch.py ps`, each with its text and a `module:function`, called instead with the options and the
    running server; it returns an exit code."""
    redact: str = ""
    """`module:function`, called with the directory of frames in a snapshot that is redacted."""
    programs: Mapping[str, str] = {}
    """Commands that are programs of their own, with their modules."""


def load_object(name: str) -> Any:
    """Imports `module:function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


@functools.cache
def installed_extras() -> tuple[Extra, ...]:
    names = sorted(file.parent.name for file in FOLDER.glob("*/__init__.py"))
    return tuple(import_module(f"extras.{name}").EXTRA for name in names)


def load_parts(config: Config, place: Place) -> list[ModuleType]:
    """Imports the modules for `place`: of the extras whose flags were given, and for a frontend of all."""
    return [
        import_module(module)
        for extra in installed_extras()
        if (module := getattr(extra, place)) and (place == "frontend" or extra.name in config.extras)
    ]


def load_sections() -> dict[str, type[ExtraConfig]]:
    """Imports the sections with the flags of all installed extras, by the extras' names."""
    return {extra.name: load_object(extra.config) for extra in installed_extras() if extra.config}
